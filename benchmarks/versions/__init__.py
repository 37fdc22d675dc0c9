"""Do two TensorFlow versions agree, and can each go on with what the other made?"""
