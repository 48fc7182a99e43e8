"""The example trainers: two ranks train what one process trains with the batches of both."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from conftest import BUILD, TOP
from test_torch_launchers import free_port, torchrun_of

EXAMPLES = TOP / "worker" / "examples" / "python"
WORDNET, HELP, FASHION = "/usr/share/wordnet", "/usr/share/libreoffice/help/de", "/usr/share/datasets/fashion-mnist"
ENV = dict(os.environ, OMP_NUM_THREADS="1")
pytest.importorskip("torch")

# Arguments, and the folder of the data.
CASES = {
    "lm": (["--words", "5000", "--negatives", "64", "--length", "10", "--steps", "6"], WORDNET),
    "deepfm": (["--samples", "4000", "--rows", "5000", "--steps", "8"], ""),
    "nmt": (["--pairs", "600", "--negatives", "64", "--held-out", "20", "--lr", "0.01", "--steps", "6"], HELP),
    "gnn": (["--rmat", "13", "--steps", "6"], ""),
    "bert": (["--words", "2000", "--width", "32", "--layers", "1", "--steps", "6"], WORDNET),
    "vgg": (["--small", "--channels", "8", "--held-out", "200", "--steps", "6"], FASHION),
}


def trained(how, example, arguments, launcher=()):
    """What rank 0 printed of a run."""
    command = [*launcher, sys.executable, str(EXAMPLES / f"{example}.py"), "--how", how, "--json", *arguments]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in reversed(done.stdout.splitlines()) if '{"example"' in line)
    return json.loads(line[line.index("{") :])


def two_ranks(*more):
    return [str(BUILD / "zenpsrun"), "-n", "2", "--prefix=no", *more, "--"]


@pytest.mark.parametrize("example", CASES)
def test_two_ranks_train_as_one(example):
    arguments, folder = CASES[example]
    if folder and not os.path.isdir(folder):
        pytest.skip(f"{folder} is not here: deploy/install-deps.sh python")
    alone = trained("alone", example, [*arguments, "--batch", "16"])
    both = trained("zenps", example, [*arguments, "--batch", "8"], two_ranks())
    assert both["world"] == 2 and both["steps"] == alone["steps"] > 0
    assert both["mb_per_step"] > 0
    assert both["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert both["metrics"] == pytest.approx(alone["metrics"], rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("how", ["ddp", "gloo-sparse", "gloo-dense"])
def test_every_way_of_synchronising(how):
    arguments = [*CASES["deepfm"][0], "--batch", "8"]
    zenps = trained("zenps", "deepfm", arguments, two_ranks())
    assert trained(how, "deepfm", arguments, two_ranks())["loss"] == pytest.approx(zenps["loss"], rel=1e-5)


@pytest.mark.skipif(not os.path.isdir(WORDNET), reason="WordNet is not here: deploy/install-deps.sh python")
def test_an_lstm_learns_as_well_with_dgc():
    arguments = ["--words", "5000", "--negatives", "64", "--length", "10", "--batch", "32", "--steps", "150"]
    whole = trained("zenps", "lm", arguments, two_ranks())
    cut = trained("zenps", "lm", [*arguments, "--compress", "dgc"], two_ranks())
    assert cut["metrics"][-1] <= 1.02 * whole["metrics"][-1]
    assert cut["mb_per_step"] < 0.7 * whole["mb_per_step"]  # most of it are tables, which are not cut


@pytest.mark.skipif(not shutil.which("torchrun"), reason="torchrun is not installed")
def test_under_torchrun(tmp_path):
    launcher = [*torchrun_of(tmp_path, "--no_python", str(BUILD / "zenpsrun"), "--port", str(free_port()), "--")]
    assert trained("zenps", "deepfm", [*CASES["deepfm"][0], "--batch", "8"], launcher)["world"] == 2


def test_what_is_missing_is_said():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "lm.py"), "--how", "alone", "--data", "/nowhere"], env=ENV, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "/nowhere" in done.stderr
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "deepfm.py"), "--how", "alone", "--samples", "100", "--batch", "1000"],
        env=ENV, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "lower --batch" in done.stderr
