"""The page in headless Chromium."""

import io
import shutil

import pytest
from PIL import Image

from tests.exporters.server.serving import EVIL, serving

WHY = "needs Chromium: apt-get install chromium-driver, and pip install selenium"
webdriver = pytest.importorskip("selenium.webdriver", reason=WHY)
support = pytest.importorskip("selenium.webdriver.support.ui", reason=WHY)
DRIVER = shutil.which("chromedriver")

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(DRIVER is None, reason=WHY)]


class Page:
    """A tab; conditions and values are expressions of JavaScript."""

    def __init__(self, driver):
        self.driver = driver

    def value(self, expression):
        return self.driver.execute_script(f"return {expression}")

    def wait(self, condition):
        support.WebDriverWait(self.driver, 60, 0.05).until(
            lambda _: self.value(condition), condition
        )

    def open(self, url, width=1200, height=800, dark=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(url)

    def choose(self, *paths):
        self.driver.find_element("css selector", "#files").send_keys("\n".join(map(str, paths)))

    def errors(self):
        return [each for each in self.driver.get_log("browser") if each["source"] == "javascript"]


@pytest.fixture
def page():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield Page(driver)
    driver.quit()


@pytest.fixture
def photos(tmp_path):
    for name, value in (("dark", 80), ("bright", 240)):
        Image.new("RGB", (320, 240), (value, value, value)).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    return tmp_path


MESSAGE = "document.getElementById('message').textContent"
ROWS = "document.getElementById('rows').children.length"


def slide(page, value):
    page.driver.execute_script(
        f"var slider = document.getElementById('threshold'); slider.value = {value}; "
        "slider.dispatchEvent(new Event('input'))"
    )


@pytest.mark.parametrize(("width", "height", "dark"), [(1200, 800, False), (390, 844, True)])
def test_a_visit(page, photos, tmp_path, width, height, dark):
    with serving() as address:
        page.open(f"{address.url}/", width, height, dark)
        page.choose(photos / "bright.png", photos / "dark.png")
        page.wait("document.querySelectorAll('#thumbs button').length === 2")
        assert page.value(MESSAGE) == "dark.png: 0 of 2 detections"
        requests = page.value("performance.getEntriesByType('resource').length")
        slide(page, 0.3)
        assert page.value(ROWS) == 1
        slide(page, 0.2)
        assert page.value(ROWS) == 2 and page.value(MESSAGE) == "dark.png: 2 detections"
        page.driver.find_element("css selector", "#classes input").click()
        assert page.value(ROWS) == 1
        assert page.value("performance.getEntriesByType('resource').length") == requests
        # The name of a class is text, also on the picture and in the tooltip.
        assert EVIL in page.value("document.getElementById('classes').textContent")
        assert page.value("document.title") != "evil"
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        for count in (3, 4):  # the same files twice; what is wrong with the first stays
            page.choose(photos / "broken.png", photos / "dark.png")
            page.wait(f"document.querySelectorAll('#thumbs button').length === {count}")
            page.wait(f"{MESSAGE}.includes('not an image of a known format')")
        page.driver.save_screenshot(str(tmp_path / "page.png"))
        assert Image.open(io.BytesIO((tmp_path / "page.png").read_bytes())).width == width
        assert not page.errors()


def test_a_server_that_has_gone(page, photos):
    with serving() as address:
        page.open(f"{address.url}/")
    page.choose(photos / "dark.png")
    page.wait(f"{MESSAGE}.includes('the server does not answer')")
    assert not page.errors()
