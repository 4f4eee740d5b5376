"""How the server starts and stops, in a thread and as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from app.main import ServerThread, listen, serve
from app.services import tokens
from app.services.plane import open_control_plane
from app.settings import Settings
from tests.app.api.test_leases import claim, wait_until_seen
from tuner.errors import FieldError

SERVE = "import sys; from app.cli.main import main; sys.argv[0] = 'nightshift'; main()"


class TestAddress:
    def test_port_in_use_is_named(self, settings_on_sqlite: Settings) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            says = f"--port: cannot be used: Address already in use \\(got {port}\\)"
            with pytest.raises(FieldError, match=says):
                serve(settings_on_sqlite, host="127.0.0.1", port=port)
            with pytest.raises(FieldError, match=says):
                ServerThread(settings_on_sqlite, port=port).__enter__()

    def test_other_machines_need_a_token_first(self, settings_on_sqlite: Settings) -> None:
        with pytest.raises(FieldError, match="nightshift token create"):
            serve(settings_on_sqlite, host="0.0.0.0", port=0)

    @pytest.mark.parametrize("host", ["203.0.113.7", "no.such.name.invalid"])
    def test_address_of_another_machine(self, host: str) -> None:
        with pytest.raises(FieldError, match="--host: is no address of this machine"):
            listen(host, 0)


class TestServerThread:
    def test_stops_while_a_claim_waits(self, settings_on_sqlite: Settings) -> None:
        with ThreadPoolExecutor(1) as pool, httpx.Client(timeout=60) as http:
            with ServerThread(settings_on_sqlite) as server:
                http.base_url = f"{server.url}/api/v1"
                waiting = pool.submit(claim, http, wait_s=60.0)
                wait_until_seen(http)
                began = time.monotonic()
            assert time.monotonic() - began < 20
            assert waiting.result(timeout=5).status_code == 204

    def test_brings_a_token_of_its_own_where_there_are_some(self, settings_on_sqlite: Settings) -> None:
        plane = open_control_plane(settings_on_sqlite)
        tokens.create(plane, "me", "admin")
        with ServerThread(settings_on_sqlite) as server:
            headers = {"Authorization": f"Bearer {server.token}"}
            assert httpx.get(f"{server.url}/api/v1/studies", headers=headers).status_code == 200
        assert {token.name: token.usable for token in tokens.page(plane)}.pop("me")
        assert [token.usable for token in tokens.page(plane)].count(True) == 1
        plane.close()


class TestProcess:
    @pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
    def test_writes_its_port_serves_and_ends_well(self, tmp_path: Path, ended_by: signal.Signals) -> None:
        port_file = tmp_path / "port"
        command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--port-file", str(port_file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            watchdog = threading.Timer(120, process.kill)
            watchdog.start()
            assert process.stderr is not None
            announced = next(line for line in process.stderr if "serves at" in line)
            url = f"http://127.0.0.1:{port_file.read_text().strip()}"
            assert url in announced
            assert httpx.get(f"{url}/api/v1/readyz", timeout=30).status_code == 200
            process.send_signal(ended_by)
            errors = process.stderr.read()
            watchdog.cancel()
        assert process.returncode == 0
        assert "Traceback" not in errors
