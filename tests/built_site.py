"""The site as it is built, once for all tests, and a browser: fixtures that tests/conftest.py brings in."""

import fcntl
import functools
import http.server
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dsv41_numba.pages.execute import ROOT

BUILD_LIMIT_S = 600
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of the built site: the one DSV41_SITE names, else built now, strictly, by the first who asks."""
    if given := os.environ.get("DSV41_SITE"):
        return pathlib.Path(given)
    pytest.importorskip("mkdocs", reason='needs pip install -e ".[site]"')
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # workers share the folder above theirs
    folder, log = base / "site", base / "site.log"
    with open(base / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            done = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
                cwd=ROOT,
                env=os.environ | {"DSV41_BACKEND": "emulator", "NO_MKDOCS_2_WARNING": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                timeout=BUILD_LIMIT_S,
            )
            log.write_text(f"{done.returncode}\n{done.stdout}", encoding="utf-8")
    code, _, output = log.read_text(encoding="utf-8").partition("\n")
    if code != "0":
        pytest.fail(f"mkdocs build --strict: exit code {code}\n{output}", pytrace=False)
    return folder


@pytest.fixture(scope="session")
def server(site: pathlib.Path) -> Iterator[str]:
    """The address of a plain web server with the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, the system's."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if not found:
        pytest.skip(f"needs one of {', '.join(CHROMIUM)} on PATH")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()
