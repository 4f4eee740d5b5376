"""The Optuna dashboard of a control plane, as a person sees it in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, HttpCredentials, Page, expect, sync_playwright

from app.main import ServerThread
from app.services import studies, tokens
from app.services.plane import ControlPlane, open_control_plane
from app.settings import Settings
from tests.contracts.conftest import Hands, measured, oom, study_spec

pytestmark = pytest.mark.browser

PATIENCE_MS = 60_000
"""The first look loads the dashboard, which takes seconds on a busy machine."""
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
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane that has one completed study."""
    opened = open_control_plane(Settings(home=tmp_path))
    studies.create(opened, study_spec("seen-in-a-browser", trials=5), start=True)
    Hands(opened).work_off(lambda a: oom() if a.trial_number == 2 else measured(100.0 + a.trial_number))
    yield opened
    opened.close()


@pytest.fixture
def page(browser: Browser, plane: ControlPlane) -> Iterator[Page]:
    """A page on its server."""
    with ServerThread(plane.settings) as server:
        opened = browser.new_page(base_url=server.url)
        opened.set_default_timeout(PATIENCE_MS)
        yield opened
        opened.close()


def see(page: Page, text: str) -> None:
    """Wait until the page shows a text."""
    expect(page.get_by_text(text).first).to_be_visible(timeout=PATIENCE_MS)


def test_root_leads_to_the_list_of_studies(page: Page) -> None:
    page.goto("/")
    see(page, "seen-in-a-browser")


def test_study_shows_its_metrics(page: Page) -> None:
    page.goto("/dashboard/")
    page.get_by_text("seen-in-a-browser").first.click()
    for text in ("Pareto Front", "output_tokens_per_s", "e2e_p95_s"):
        see(page, text)


def test_list_of_trials_shows_what_became_of_each(page: Page) -> None:
    page.goto("/dashboard/studies/1/trials")
    for number in range(5):
        see(page, f"Trial {number}")
    see(page, "Best Trial")
    page.get_by_text("Trial 2", exact=True).first.click()
    for text in ("Trial 2 (trial_id=3)", "Pruned", "failure oom_device", "message CUDA out of memory"):
        expect(page.get_by_text(text).first).to_be_attached(timeout=PATIENCE_MS)


def test_token_is_the_password(browser: Browser, plane: ControlPlane) -> None:
    token = tokens.create(plane, "me", "viewer").token
    with ServerThread(plane.settings) as server:
        stranger = browser.new_page(base_url=server.url)
        with pytest.raises(Error, match="AUTH"):
            stranger.goto("/dashboard/", timeout=PATIENCE_MS)
        credentials: HttpCredentials = {"username": "anyone", "password": token}
        friend = browser.new_page(base_url=server.url, http_credentials=credentials)
        friend.goto("/dashboard/", timeout=PATIENCE_MS)
        see(friend, "seen-in-a-browser")
        stranger.close()
        friend.close()
