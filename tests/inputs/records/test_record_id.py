from __future__ import annotations

from estimator_det.compat import tf
from inputs.records.record_id import pack_record_ids, split_record_id, unpack_record_ids


def test_file_and_number_share_an_integer() -> None:
    files, numbers = [0, 5, 70000], [0, 17, 2**40 - 1]
    record_ids = pack_record_ids(tf.constant(files, tf.int64), tf.constant(numbers, tf.int64))
    expected = [[0, 0], [5, 17], [70000, 2**40 - 1]]
    assert unpack_record_ids(record_ids).numpy().tolist() == expected
    assert [list(split_record_id(one)) for one in record_ids.numpy().tolist()] == expected
