"""SVG plots with gnuplot, where it is installed."""
import os
import shutil
import subprocess

from .report import DENSE, is_rival, label, speedups

STYLE = """set terminal svg size 760,460 font "sans,13" background "white"
set output "{path}"
set title "{title}" noenhanced
set key outside right top noenhanced
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror noenhanced
"""


def gnuplot(path, title, commands, blocks):
    data = "".join(f"${name} << EOD\n" + "\n".join(lines) + "\nEOD\n" for name, lines in blocks.items())
    done = subprocess.run(["gnuplot"], input=data + STYLE.format(path=path, title=title) + commands, capture_output=True, text=True)
    if done.returncode != 0:
        return f"no plot {os.path.basename(path)}: gnuplot says {done.stderr.strip()[-200:]}"
    return f"plot {path}"


def lines_over(path, title, rows, x, x_label):
    """Median time over x, a line for each system."""
    series = {}
    for row in rows:
        series.setdefault(label(row), []).append((x(row), row["median_ms"]))
    series = {name: sorted(points) for name, points in series.items()}
    if not any(len(points) > 1 for points in series.values()):
        return None
    blocks = {f"d{i}": [f"{a} {b}" for a, b in points] for i, points in enumerate(series.values())}
    plot = ", ".join(f'$d{i} using 1:2 with linespoints lw 2 pt {i + 4} title "{name}"' for i, name in enumerate(series))
    return gnuplot(path, title, f'set logscale xy\nset xlabel "{x_label}"\nset ylabel "median, ms"\nplot {plot}\n', blocks)


def bars(path, title, values, y_label):
    """A bar for each (name, value)."""
    lines = [f'"{name}" {value}' for name, value in values]
    return gnuplot(path, title, f'set style fill solid 0.8\nset boxwidth 0.6\nset yrange [0:*]\nset ylabel "{y_label}"\nset xtics rotate by -30\n'
                   'plot $d using 0:2:xtic(1) with boxes lc rgb "#3366aa" notitle, $d using 0:2:(sprintf("%.3g", $2)) with labels offset 0,0.7 notitle\n',
                   {"d": lines})


def draw(rows, out):
    """Draws what the rows allow; a line of text for each plot."""
    if not shutil.which("gnuplot"):
        return ["no plots: gnuplot is not installed"]
    said = []
    fast = speedups(rows)
    for n, rate in sorted({(row["n"], row["rate"]) for _, row, *_ in fast}):
        values = [(trace, f"{speed} {allow or 0}") for trace, row, speed, allow, _ in fast if (row["n"], row["rate"]) == (n, rate)]
        said.append(gnuplot(os.path.join(out, f"speedup-n{n}-{rate}.svg"), f"speed-up over the best dense rival, {n} hosts, {rate}",
                            'set style data histogram\nset style fill solid 0.8\nset yrange [0:*]\nset ylabel "times faster"\n'
                            'plot $d using 2:xtic(1) title "measured", $d using 3 title "what the bytes allow"\n',
                            {"d": [f'"{name}" {pair}' for name, pair in values]}))
    for rate in sorted({r["rate"] for r in rows if r.get("grid") == "nodes"}):
        said.append(lines_over(os.path.join(out, f"nodes-{rate}.svg"), f"time over hosts, 4M floats, 1%, {rate}",
                               [r for r in rows if r.get("grid") == "nodes" and r["rate"] == rate], lambda r: r["n"], "hosts"))
    scale = [r for r in rows if r.get("grid") == "scale"]
    if scale:
        said.append(lines_over(os.path.join(out, "scale.svg"), f"time over hosts, {scale[0]['rate']}", scale, lambda r: r["n"], "hosts"))
    for n, rate in sorted({(r["n"], r["rate"]) for r in rows if r.get("grid") == "planner"}):
        part = [r for r in rows if r.get("grid") == "planner" and (r["n"], r["rate"]) == (n, rate)]
        flat = [dict(r, density=d) for r in part if is_rival(r) and r["scheme"] in DENSE for d in {q["density"] for q in part}]
        part = [r for r in part if not (is_rival(r) and r["scheme"] in DENSE)] + flat
        said.append(lines_over(os.path.join(out, f"density-n{n}-{rate}.svg"), f"time over density, {n} hosts, {rate}", part,
                               lambda r: 100 * r["density"], "density, %"))
    steps = [r for r in rows if r.get("grid") == "breakdown"]
    if steps:
        names = [({"coo": "COO", "paper": "+ hash bitmap", "auto": "+ our codecs"}[r["codec"]] if r.get("elements") else "+ rows")
                 if r["system"] == "zenps" else label(r) for r in steps]
        said.append(bars(os.path.join(out, "breakdown.svg"), "what each feature gains", [(name, r["median_ms"]) for name, r in zip(names, steps)],
                         "median, ms"))
    costs = {}
    for r in rows:
        if r.get("cpu_s_per_gb") and r["rate"] == "none" and r.get("grid") != "small":
            costs.setdefault(label(r), []).append(r["cpu_s_per_gb"])
    if costs:
        said.append(bars(os.path.join(out, "cpu.svg"), "CPU seconds per GB of gradient, unshaped, mean of rows",
                         [(name, sum(c) / len(c)) for name, c in costs.items()], "CPU s / GB"))
    return [line for line in said if line]
