"""The Optuna dashboard of a control plane, as a person sees it in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from app.main import ServerThread
from app.services import studies
from app.services.plane import open_control_plane
from app.settings import Settings
from tests.contracts.conftest import Hands, measured, oom, study_spec

pytestmark = pytest.mark.browser

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    executable = shutil.which("chromium")
    assert executable, "install Debian's package chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """A page on a server that has one completed study."""
    settings = Settings(home=tmp_path)
    plane = open_control_plane(settings)
    studies.create(plane, study_spec("seen-in-a-browser", trials=5), start=True)
    Hands(plane).work_off(lambda a: oom() if a.trial_number == 2 else measured(100.0 + a.trial_number))
    plane.close()
    with ServerThread(settings) as server:
        opened = browser.new_page(base_url=server.url)
        yield opened
        opened.close()


def test_root_leads_to_the_list_of_studies(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_text("seen-in-a-browser").first).to_be_visible()


def test_study_shows_its_metrics_and_its_trials(page: Page) -> None:
    page.goto("/dashboard/")
    page.get_by_text("seen-in-a-browser").first.click()
    expect(page.get_by_text("output_tokens_per_s").first).to_be_visible()
    page.goto("/dashboard/studies/1/trials")
    for number in range(5):
        expect(page.get_by_text(f"Trial {number}", exact=True).first).to_be_visible()
    expect(page.get_by_text("Pruned").first).to_be_visible()
