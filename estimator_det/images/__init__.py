"""Operations on pixels that inputs and detectors share."""
