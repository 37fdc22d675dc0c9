"""The page in headless Chromium."""

import io

import pytest
from PIL import Image

from tests.exporters.server.browser import PROGRAM, browser
from tests.exporters.server.serving import EVIL, serving

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture
def photos(tmp_path):
    for name, value in (("dark", 80), ("bright", 240)):
        Image.new("RGB", (320, 240), (value, value, value)).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    return tmp_path


MESSAGE = "document.getElementById('message').textContent"
ROWS = "document.getElementById('rows').children.length"


def slide(page, value):
    page.run(
        f"var slider = document.getElementById('threshold'); slider.value = {value}; "
        "slider.dispatchEvent(new Event('input'))"
    )


@pytest.mark.parametrize(("width", "height", "dark"), [(1200, 800, False), (390, 844, True)])
def test_a_visit(photos, tmp_path, width, height, dark):
    with serving() as address, browser(tmp_path / "profile") as page:
        page.open(f"{address.url}/", width, height, dark)
        page.choose("#files", photos / "bright.png", photos / "dark.png")
        page.wait("document.querySelectorAll('#thumbs button').length === 2")
        assert page.run(MESSAGE) == "dark.png: 0 of 2 detections"
        requests = page.run("performance.getEntriesByType('resource').length")
        slide(page, 0.3)
        assert page.run(ROWS) == 1
        slide(page, 0.2)
        assert page.run(ROWS) == 2 and page.run(MESSAGE) == "dark.png: 2 detections"
        page.run("document.querySelector('#classes input').click()")
        assert page.run(ROWS) == 1
        assert page.run("performance.getEntriesByType('resource').length") == requests
        # The name of a class is text, also on the picture and in the tooltip.
        assert EVIL in page.run("document.getElementById('classes').textContent")
        assert page.run("document.title") != "evil"
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        for count in (3, 4):  # the same files twice; what is wrong with the first stays
            page.choose("#files", photos / "broken.png", photos / "dark.png")
            page.wait(f"document.querySelectorAll('#thumbs button').length === {count}")
            page.wait(f"{MESSAGE}.includes('not an image of a known format')")
        page.screenshot(tmp_path / "page.png")
        assert Image.open(io.BytesIO((tmp_path / "page.png").read_bytes())).width == width
        assert not page.errors


def test_a_server_that_has_gone(photos, tmp_path):
    with browser(tmp_path / "profile") as page:
        with serving() as address:
            page.open(f"{address.url}/")
        page.choose("#files", photos / "dark.png")
        page.wait(f"{MESSAGE}.includes('the server does not answer')")
        assert not page.errors
