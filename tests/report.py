"""A report in a real browser, headless. Needs Chromium and its driver (Debian: chromium-driver).

As a program it takes the README's picture: python tests/report.py REPORT PICTURE
"""

import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
AVAILABLE = bool(CHROMIUM and DRIVER)


@contextmanager
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(option)
    options.add_argument("--window-size=1400,900")
    # Nothing may come from the network.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Report:
    """A person who looks at a report."""

    def __init__(self, driver, path: Path) -> None:
        self.driver, self.path = driver, path

    def open(self, *folders: str) -> None:
        """Go to a category (and subcategory)."""
        self.driver.get(self.path.absolute().as_uri())
        self._find("//*[contains(., 'RESULTS') or contains(., 'Results')]")
        for folder in folders:
            self._find(f"//nav//a[contains(., '{folder}')]").click()

    def _find(self, xpath: str):
        return WebDriverWait(self.driver, 20).until(
            lambda d: next((e for e in d.find_elements(By.XPATH, xpath) if e.is_displayed()), None)
        )

    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def items(self) -> list[str]:
        self._find("//nav//tr")
        rows = self.driver.find_elements(By.XPATH, "//nav//tr[.//a]")
        return [row.text.strip() for row in rows if row.text.strip()]

    def view(self, item: str) -> str:
        """Click on an item's eye; the text of the page that opens, or 'image' of a picture."""
        self._find(f'//nav//tr[contains(., "{item}")]//a[1]').click()
        shown = self._find("//iframe | //img[starts-with(@src, 'data:') and not(ancestor::nav)]")
        if shown.tag_name == "img":
            width = self.driver.execute_script("return arguments[0].naturalWidth", shown)
            assert width > 100, f"{item}: the picture did not load"
            return "image"
        self.driver.switch_to.frame(shown)
        text = self.text()
        pictures = self.driver.find_elements(By.TAG_NAME, "img")
        for picture in pictures:
            width = self.driver.execute_script("return arguments[0].naturalWidth", picture)
            assert width > 100, f"{item}: a picture did not load"
        self.driver.switch_to.default_content()
        return text

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


def take_picture(path: Path, picture: Path) -> None:
    """The figure about words of S, as a person finds it."""
    with browser() as driver:
        report = Report(driver, path)
        report.open("2. Analyses", "qas-qat")
        report.view("Figure 4")
        driver.save_screenshot(str(picture))


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]), Path(sys.argv[2]))
