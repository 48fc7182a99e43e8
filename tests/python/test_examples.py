"""The example trainers: two ranks train what one process trains with the batches of both."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import BUILD, TOP, has
from test_torch_launchers import free_port, torchrun_of

EXAMPLES = TOP / "worker" / "examples" / "python"
WORDNET, HELP, FASHION = "/usr/share/wordnet", "/usr/share/libreoffice/help/de", "/usr/share/datasets/fashion-mnist"
ENV = dict(os.environ, OMP_NUM_THREADS="1")
if not has(sys.executable, "torch"):
    pytest.skip(f"{sys.executable} has no torch", allow_module_level=True)

# Arguments, and the folder of the data.
CASES = {
    "lm": (["--words", "5000", "--negatives", "64", "--length", "10", "--steps", "6"], WORDNET),
    "deepfm": (["--samples", "4000", "--rows", "5000", "--steps", "8"], ""),
    "nmt": (["--pairs", "600", "--negatives", "64", "--held-out", "20", "--lr", "0.01", "--steps", "6"], HELP),
    "gnn": (["--rmat", "13", "--steps", "6"], ""),
    "bert": (["--words", "2000", "--width", "32", "--layers", "1", "--steps", "6"], WORDNET),
    "vgg": (["--small", "--channels", "8", "--held-out", "200", "--steps", "6"], FASHION),
}


def trained(how, example, arguments, launcher=(), **env):
    """What rank 0 printed of a run."""
    command = [*launcher, sys.executable, str(EXAMPLES / f"{example}.py"), "--how", how, "--json", *arguments]
    done = subprocess.run(command, env=dict(ENV, **env), capture_output=True, text=True, timeout=300, check=False)
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


@pytest.mark.parametrize("how", ["ddp", "ddp-torch", "gloo-sparse", "gloo-dense"])
def test_every_way_of_synchronising(how):
    arguments = [*CASES["deepfm"][0], "--batch", "8"]
    zenps = trained("zenps", "deepfm", arguments, two_ranks())
    assert trained(how, "deepfm", arguments, two_ranks())["loss"] == pytest.approx(zenps["loss"], rel=1e-5)


@pytest.mark.skipif(not os.path.isdir(WORDNET), reason="WordNet is not here: deploy/install-deps.sh python")
def test_an_lstm_learns_as_well_with_dgc():
    arguments = ["--words", "5000", "--negatives", "64", "--length", "10", "--batch", "32", "--steps", "150"]
    counted = {"ZENPS_SCHEME": "balanced"}  # ring's payloads go through memory that the ranks share
    whole = trained("zenps", "lm", arguments, two_ranks(), **counted)
    cut = trained("zenps", "lm", [*arguments, "--compress", "dgc"], two_ranks(), **counted)
    assert cut["metrics"][-1] <= 1.02 * whole["metrics"][-1]
    assert cut["mb_per_step"] < 0.7 * whole["mb_per_step"]  # most of it are tables, which are not cut


@pytest.mark.parametrize("example", ["lm", "bert"])
@pytest.mark.skipif(not os.path.isdir(WORDNET), reason="WordNet is not here: deploy/install-deps.sh python")
def test_outer_steps_beside_ddp(example):
    """Both learn, and outer steps move a small part of the bytes."""
    arguments = [*CASES[example][0][:-2], "--steps", "16", "--every", "2", "--batch", "8", "--json"]
    command = [*two_ranks(), sys.executable, str(EXAMPLES / "outer.py"), example, *arguments]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"example"')))
    assert result["outer"]["steps"] == result["ddp"]["steps"] == 16
    assert result["loss"] < 1.25 * result["ddp_loss"], done.stdout
    assert 0 < result["bytes"] < result["ddp_bytes"] / 50, done.stdout
    assert re.search(r"loss [+-][\d.]+%, \d+ times fewer bytes", done.stdout), done.stdout


OUTER_REFUSALS = {
    "--peers 4:2": "'4:2' must be MIN:MAX, such as 2:8, MIN at least 1 and at most MAX",
    "--peers 0:2": "'0:2' must be MIN:MAX",
    "--peers 2": "'2' must be MIN:MAX",
    "--peers two:4": "'two:4' must be MIN:MAX",
    "--peers 2:4 --steps 9": "--steps has no effect with --peers",
    "--peers 2:4 --compress topk": "--compress has no effect with --peers",
    "--samples 9": "--samples has no effect without --peers",
    "--every 0": "--every 0: must be over 0",
    "--outer-lr nan": "--outer-lr nan: must be over 0",
}


def test_options_of_outer_steps():
    code = """if True:
        import contextlib, io, json, sys
        import outer
        for given in json.loads(sys.argv[1]):
            with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.suppress(SystemExit):
                outer.parsed("lm", given.split())
            print(said.getvalue().splitlines()[-1])
    """
    command = [sys.executable, "-c", code, json.dumps(list(OUTER_REFUSALS))]
    done = subprocess.run(command, env={**ENV, "PYTHONPATH": f"{ENV['PYTHONPATH']}:{EXAMPLES}"}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for said, words in zip(done.stdout.splitlines(), OUTER_REFUSALS.values()):
        assert words in said
    assert done.stdout.count("\n") == len(OUTER_REFUSALS)


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


def test_text_files_are_read_as_they_come(tmp_path, monkeypatch):
    """A mark of UTF-8 and comments are no data; what is wrong is refused, with its place."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import data

    file = tmp_path / "rows"
    file.write_bytes(b"\xef\xbb\xbf4 9\n\n# a comment\n7 # and one\n")
    assert data.ids(str(file)) == [[4, 9], [7]]
    with gzip.open(tmp_path / "rows.gz", "wb") as packed:
        packed.write(file.read_bytes())
    assert data.ids(str(tmp_path / "rows.gz")) == [[4, 9], [7]]
    file.write_text("# nodes\n0 1 0.5\n1 2\n1 0\n")
    n_nodes, edges = data.edges(str(file))
    assert n_nodes == 3 and edges.tolist() == [[0, 1], [1, 2]]
    wrong = {
        b"1 2\n3 \0 4\n": "line 2, column 3: a NUL",
        b"1 2\n3 4294967294\n": "line 2: '4294967294' is no row: must be a number from 0 to 2147483647",
        b"1 -2\n": "line 1: '-2' is no row",
        b"1 2\n3 x\n": "line 2: 'x' is no row",
        b"1 2\n" + b"3 " + b"9" * 5000 + b"\n": "line 2: '9999",
        b"1 2\n3\n": "line 2: must have 2 numbers, and has 1",
    }
    for text, why in wrong.items():
        file.write_bytes(text)
        with pytest.raises(ValueError, match=re.escape(why)):
            data.edges(str(file))
    file.write_text("user,film,stars,at\n1,2,4.5,10\n1,x,4.5,10\n")
    with pytest.raises(ValueError, match="line 3: '1,x,4.5,10.*' is no rating"):
        data.ratings(str(file))


def test_selection_of_values_for_torch(tmp_path):
    """The bench of compressors: all of them, a few steps."""
    command = [str(TOP / "tests" / "bench" / "selection"), "-n", "2", "torch", "--steps", "8", "--densities", "0.05", "--batch", "1"]
    environment = dict(ENV, BUILD=str(BUILD), PYTHON=sys.executable)
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    names = ["dense", "dense, seed 1", "TopK", "DGC", "OkTopk", "GTopk", "Gaussiank", "Buckets"]
    assert [row[0] for row in rows] == [f"| {name}" for model in ("lm", "gpt") for name in [model, *names]]
    for table in (rows[1:9], rows[10:]):
        dense, _, *cut = [[float(row[at].split()[0]) for at in (4, 7)] for row in table]
        assert all(sent[at] < dense[at] for sent in cut for at in (0, 1)), table
    assert "At most 1% above dense in all columns" in done.stdout


MODEL = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(os.environ["ZENPS_RANK"]), world_size=2)
torch.manual_seed(1 + dist.get_rank())
module = model = torch.nn.Sequential(torch.nn.Embedding(5000, 16), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.arange(8) + 8 * dist.get_rank(), torch.ones(8, 1))] * 3
STEPS = 3
class data:
    of = staticmethod(lambda step, rank, world: batches[0][0])
def loss(outputs, labels=1.0):
    return (outputs - labels).square().mean()
"""
SAME = """
own = torch.cat([each.detach().view(-1) for each in model.parameters()])
every = [torch.empty_like(own) for _ in range(2)]
dist.all_gather(every, own)
assert torch.equal(*every)
"""
PARTS = {  # what the page leaves to its reader, and a check: before and after each of its blocks
    "arrays": ("""
import numpy as np
gradients, row_ids = np.ones((3, 64), np.float32), np.array([5, 2, 5], np.int32)
def apply(ids, values):
    assert np.asarray(ids).tolist() == [2, 5] and np.asarray(values)[:, 7].tolist() == [1, 2]
""", ""),
    "GradientSync": (MODEL, SAME),
    "ddp": (MODEL, "loss(model(batches[0][0])).backward(); optimizer.step()" + SAME),
    "elastic": (MODEL, "assert state.step == STEPS" + SAME),
}  # fmt: skip


@pytest.mark.parametrize("at,name", enumerate(PARTS))
def test_the_readme(tmp_path, at, name):
    """The blocks of the package's page run as they stand."""
    blocks = re.findall(r"^```python\n(.*?)^```", (TOP / "worker" / "python" / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == len(PARTS)
    before, after = PARTS[name]
    (tmp_path / "block.py").write_text(f"{before}\n{blocks[at]}\n{after}\n")
    command = [*two_ranks(), sys.executable, str(tmp_path / "block.py"), str(tmp_path / "store")]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
