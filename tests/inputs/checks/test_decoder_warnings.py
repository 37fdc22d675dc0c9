import os
import sys

import pytest

from estimator_det.compat import tf
from inputs.checks import decoder_warnings, stderr_filter
from tests.inputs import examples

JPEG_WARNING = b"Corrupt JPEG data: premature end of data segment\n"


def filtered(capfd, *texts: bytes) -> str:
    with decoder_warnings.count():
        for text in texts:
            os.write(2, text)
    return capfd.readouterr().err


def test_warnings_are_counted_and_other_text_stays(capfd) -> None:
    lines = filtered(
        capfd, b"step 1\n", JPEG_WARNING, b"\rstep 2", b"\n" + JPEG_WARNING, b"libpng warning: x\n"
    )
    assert lines == (
        "step 1\nimage decoder: Corrupt JPEG data: premature end of data segment\n"
        "  further warnings of the decoder are counted, not printed; "
        "estimator-det check-data names the damaged images\n"
        "\rstep 2\nimage decoder: 3 warnings in all\n"
    )


def test_errors_of_calls_to_libjpeg_are_counted(capfd) -> None:
    error = b"Improper call to JPEG library in state 201\n"
    lines = filtered(capfd, error[:9], error[9:], b"step 1\n", error)
    assert lines.count("Improper call") == 1
    assert lines.endswith("step 1\nimage decoder: 2 warnings in all\n")


@pytest.mark.parametrize("text", [b"", b"step 1", b"\x1b[31m\n", b"Corrupt", b"a\r\nb\n" * 40000])
def test_text_without_warnings_passes_unchanged(capfd, text) -> None:
    with decoder_warnings.count():
        position = 0
        while position < len(text):
            position += os.write(2, text[position:])
    assert capfd.readouterr().err.encode() == text


def test_standard_error_is_the_same_afterwards(capfd) -> None:
    before = os.fstat(2).st_ino
    with pytest.raises(ZeroDivisionError), decoder_warnings.count():
        assert os.fstat(2).st_ino != before
        print("printed", file=sys.stderr)
        raise ZeroDivisionError
    assert os.fstat(2).st_ino == before
    assert capfd.readouterr().err == "printed\n"


def test_a_beginning_waits_for_the_rest_of_its_line() -> None:
    assert stderr_filter.split(b"done\nCorrupt JP") == (b"done\n", b"Corrupt JP")
    assert stderr_filter.split(b"done\nstep 1") == (b"done\nstep 1", b"")
    assert stderr_filter.split(b"done\n") == (b"done\n", b"")


def test_an_image_that_is_decoded_in_each_epoch_is_reported_once(capfd) -> None:
    jpeg = examples.encoded(examples.picture(60, 60), "JPEG")
    damaged = jpeg[:900] + b"\xff\xd9" + jpeg[902:]
    with decoder_warnings.count():
        for _ in range(3):
            tf.io.decode_image(damaged)
    printed = capfd.readouterr().err
    assert printed.count("Corrupt JPEG data") == 1
    assert printed.endswith("image decoder: 3 warnings in all\n")
