"""A figure as Markdown, JSON or TAP, and its plots."""

import dataclasses
import json
import os

from labbench.plots import gnuplot


def table_lines(table):
    """Columns of numbers to the right."""
    right = [all(str(row[i])[:1] in "-.0123456789" for row in table.rows if str(row[i])) for i in range(len(table.columns))]
    yield f"{table.title}:"
    yield ""
    yield "| " + " | ".join(map(str, table.columns)) + " |"
    yield "|" + "|".join("---:" if is_number else "---" for is_number in right) + "|"
    for row in table.rows:
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""


class Text:
    """Markdown."""

    def __init__(self, options=""):
        self.options = options  # of the command

    def tell(self, figure, found, plots):
        lines = [
            f"## {figure.name}: {figure.title}",
            "",
            f"`tests/bench/figures {figure.name}{self.options}`, {found.seconds:.0f} s. The paper:",
            "",
            *(f"- {line}" for line in figure.paper),
            "",
            f"Here: {figure.differs}.",
            "",
        ]
        if found.missing:
            lines += [f"Not shown: {found.missing}.", ""]
        for table in found.tables:
            lines += table_lines(table)
        said = {"ok": "as in the paper", "differs": "differs", "failed": "FAILED"}
        lines += [f"- {said[result]}: {text}{f' ({detail})' if detail else ''}" for result, text, detail in found.checks]
        lines += [f"- note: {note}" for note in dict.fromkeys(found.notes)] + [f"- {plot}" for plot in plots]
        print("\n".join(lines) + "\n", flush=True)

    def end(self):
        pass


class Json:
    def tell(self, figure, found, plots):
        row = {
            "figure": figure.name,
            "title": figure.title,
            "paper": figure.paper,
            "differs": figure.differs,
            "missing": found.missing,
            "tables": [dataclasses.asdict(table) for table in found.tables],
            "plots": [dataclasses.asdict(plot) for plot in found.plots],
            "checks": [{"result": result, "text": text, "detail": detail} for result, text, detail in found.checks],
            "notes": found.notes,
            "seconds": round(found.seconds, 1),
        }
        print(json.dumps(row), flush=True)

    def end(self):
        pass


class Tap:
    """What differs in shape is ok, with a comment; a figure that cannot be shown is skipped."""

    def __init__(self):
        self.n = 0

    def line(self, good, text):
        self.n += 1
        print(f"{'ok' if good else 'not ok'} {self.n} - {text}", flush=True)

    def tell(self, figure, found, plots):
        if found.missing:
            self.line(True, f"{figure.name} # SKIP {found.missing}")
        for result, text, detail in found.checks:
            self.line(result != "failed", f"{figure.name}: {text}".replace("#", ""))
            if result != "ok":
                print(f"# {'differs' if result == 'differs' else 'got'}: {detail}", flush=True)
        print(f"# {figure.name}: {found.seconds:.1f} s", flush=True)

    def end(self):
        print(f"1..{self.n}")


def draw(name, found, out):
    """A line of text for each plot."""
    said = []
    for plot in found.plots:
        series = {label: points for label, points in plot.series.items() if points}
        blocks = {f"d{i}": [f"{x} {y}" for x, y in points] for i, points in enumerate(series.values())}
        commands = f"set logscale {plot.log}\n" if plot.log else ""
        lines = ", ".join(f'$d{i} using 1:2 with linespoints lw 2 pt {i + 4} title "{label}"' for i, label in enumerate(series))
        commands += f'set xlabel "{plot.x}"\nset ylabel "{plot.y}"\nplot {lines}\n'
        said.append(gnuplot(os.path.join(out, f"{name}-{plot.name}.svg"), f"{name}: {plot.y} over {plot.x}", commands, blocks))
    return said
