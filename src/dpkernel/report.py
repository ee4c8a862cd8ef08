"""A report that a reader without Python understands: one HTML file, nothing fetched from outside."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

import numpy as np

from dpkernel.certificate import Certificate

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c1c1c; background: #fff }
pre { background: #f2f2f2; padding: 1rem; overflow-x: auto; white-space: pre-wrap }
table { border-collapse: collapse } td, th { padding: .3rem .8rem .3rem 0; text-align: left;
        vertical-align: top; border-bottom: 1px solid #ccc }
img { max-width: 100%; height: auto; background: #fff }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #16181c }
  pre { background: #24272e } td, th { border-color: #444 } }
"""


def write_report(
    certificate: Certificate, path: str | Path, *, title: str = "Privacy report"
) -> Path:
    """Write the certificate, its meaning and its trade-off curve as one HTML page."""
    verdict = certificate.verdict[:1].upper() + certificate.verdict[1:] + "."
    rows = "".join(
        f"<tr><td>{html.escape(r.title)}</td><td>{r.mechanism.kind}</td>"
        f"<td>{r.mechanism.sensitivity.value:.6g} ({html.escape(r.mechanism.sensitivity.formula)})</td>"
        f"<td>{r.mechanism.noise_scale:.6g}</td></tr>"
        for r in certificate.releases
    )
    record = "unit" if certificate.unit == "group" else "record"
    picture = base64.b64encode(_trade_off_picture(certificate)).decode()
    public = "".join(
        f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(str(v))}</td></tr>"
        for k, v in certificate.public.items()
    )
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<p><strong>{html.escape(verdict)}</strong></p>
<pre>{html.escape(str(certificate))}</pre>
<h2>What left the data</h2>
<p>Only the following quantities, each with noise. Everything else in the model was computed from
them.</p>
<table><tr><th>release</th><th>mechanism</th><th>sensitivity</th><th>noise scale</th></tr>{rows}</table>
<h2>What an attacker can do</h2>
<p>Someone who knows every {record} but one, and sees the model, tries to tell which of two values
that {record} has. Below the curve no attack can go, whatever its method.</p>
<img alt="Trade-off curve: the smallest possible false negative rate for each false positive rate"
 src="data:image/png;base64,{picture}">
<h2>What is public</h2>
<table>{public}</table>
<h2>How to check it</h2>
<p><code>dpkernel verify certificate.json</code> recomputes sensitivity, noise, epsilon and delta from
the parameters above. It can't detect a forgery that is consistent in itself.</p>
</body></html>
"""
    path = Path(path)
    path.write_text(page, encoding="utf-8")
    return path


def _trade_off_picture(certificate: Certificate) -> bytes:
    from matplotlib.figure import Figure

    alpha = np.linspace(0.0, 1.0, 201)
    figure = Figure(figsize=(5.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(alpha, certificate.profile.trade_off(alpha), color="#0b5fa5", label="this release")
    axes.plot(alpha, 1 - alpha, color="#777777", linestyle="--", label="blind guessing")
    axes.set(xlabel="false positive rate", ylabel="false negative rate", xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
