"""Take a picture of a report with Chromium, for the README: ``python tools/report_picture.py REPORT``.

``make report-picture`` runs the demonstration first and takes the picture of its report.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs/pictures/report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT = 1000, 1070  # pixels: the summary, which is the first page


def take(report: Path, picture: Path) -> None:
    """Write the picture of the top of a report."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"The picture needs one of {', '.join(BROWSERS)}. Install Chromium.")
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={profile}"]
        options += [f"--screenshot={picture}", report.resolve().as_uri()]
        subprocess.run([browser, *options], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    take(Path(sys.argv[1]), PICTURE)
    print("written:", PICTURE)
