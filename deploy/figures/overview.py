#!/usr/bin/env python3
"""Writes the picture of the README: one step of three ranks over two servers.

    deploy/figures/overview.py [FILE]      default: overview.svg beside this script

The gradients below are the only data: which rows each server sums, the order of the additions and the result that every
rank gets are computed from them. The same script writes the same bytes; tests/check-figures.sh compares.
"""
import html
import pathlib
import sys

OWNER = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0]  # the server of each row of the tensor, as the hash deals them
GRADIENTS = [{1: 3, 5: 2, 8: 1}, {0: 4, 5: 1, 8: 5}, {1: 2, 3: 6, 5: 3, 7: 7}]  # by rank: row -> value

WIDTH, HEIGHT = 960, 468
CELL = 21
LEFT, RIGHT, BOX = 24, 706, 230  # ranks: where a box begins, and its width
SERVER_X, SERVER_W, SERVER_H = 376, 208, 112
COORDINATOR_W, CAPTION_W = 256, 187
RANK_Y, RANK_H = [102, 186, 270], 68
SERVER_Y = [102, 226]

# Light colours, then those of dark mode. The card is drawn too, so that the picture is readable on any page.
STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 13px; fill: #1f2328 }
  .title { font-size: 14px; font-weight: 600 } .small { font-size: 12px; fill: #57606a }
  .step { font-size: 15px; font-weight: 700 }
  .cell { font-size: 12px; text-anchor: middle } .middle { text-anchor: middle } .end { text-anchor: end }
  .on { font-weight: 700; fill: #ffffff } .sum { font-size: 12.5px }
  .card { fill: #ffffff; stroke: #d0d7de } .box { fill: #f6f8fa; stroke: #afb8c1 }
  .zero { fill: #ffffff; stroke: #d0d7de } .dot { fill: #8c959f }
  .fill0 { fill: #0969da; stroke: #0969da } .fill1 { fill: #bc4c00; stroke: #bc4c00 }
  .ink0 { fill: #0969da } .ink1 { fill: #bc4c00 }
  .way { fill: none; stroke-width: 1.8 } .line0 { stroke: #0969da } .line1 { stroke: #bc4c00 }
  .control { fill: none; stroke: #6e7781; stroke-width: 1.3; stroke-dasharray: 4 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9da7b3 } .on { fill: #0d1117 }
    .card { fill: #0d1117; stroke: #30363d } .box { fill: #161b22; stroke: #484f58 }
    .zero { fill: #0d1117; stroke: #30363d } .dot { fill: #6e7681 }
    .fill0 { fill: #58a6ff; stroke: #58a6ff } .fill1 { fill: #f0883e; stroke: #f0883e }
    .ink0 { fill: #58a6ff } .ink1 { fill: #f0883e }
    .line0 { stroke: #58a6ff } .line1 { stroke: #f0883e } .control { stroke: #8b949e }
  }
"""

out = []


def text(x, y, words, kind):
    out.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{html.escape(words)}</text>')


def box(x, y, width, height, kind, radius=6):
    out.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" class="{kind}"/>')


def way(x0, y0, x1, y1, server):
    """From a rank to a server, or back: the arrow's colour is the server's."""
    middle = (x0 + x1) / 2
    curve = f"M{x0:g} {y0:g} C{middle:g} {y0:g} {middle:g} {y1:g} {x1 - 7:g} {y1:g}"
    out.append(f'<path d="{curve}" class="way line{server}"/>')
    out.append(f'<path d="M{x1:g} {y1:g} l-9 -4 v8 z" class="ink{server}"/>')


def strip(x, y, values):
    """A tensor: one cell per row, coloured by the server that owns it where it is not zero."""
    for row, server in enumerate(OWNER):
        value = values.get(row)
        box(x + row * CELL, y, CELL - 2, CELL - 1, f"fill{server}" if value else "zero", 3)
        text(x + row * CELL + (CELL - 2) / 2, y + 14.5, str(value or 0), "cell on" if value else "cell dot")


def rank(x, y, name, values, note):
    box(x, y, BOX, RANK_H, "box")
    text(x + 12, y + 22, name, "title")
    text(x + BOX - 12, y + 22, note, "small end")
    strip(x + 11, y + 34, values)


def server(number, rows):
    """Each row of the union as the additions that make it, in rank order."""
    y = SERVER_Y[number]
    box(SERVER_X, y, SERVER_W, SERVER_H, "box")
    text(SERVER_X + 12, y + 22, f"server {number}", f"title ink{number}")
    text(SERVER_X + SERVER_W - 12, y + 22, "zenpsd", "small end")
    for line, row in enumerate(rows):
        at = y + 46 + 22 * line
        terms = [gradient[row] for gradient in GRADIENTS if row in gradient]
        text(SERVER_X + 12, at, f"row {row}", "sum")
        text(SERVER_X + 70, at, " + ".join(map(str, terms)), "sum")
        text(SERVER_X + 148, at, "=", "sum")
        text(SERVER_X + 172, at, str(sum(terms)), f"sum title ink{number}")


def main():
    union = sorted({row for gradient in GRADIENTS for row in gradient})
    total = {row: sum(gradient.get(row, 0) for gradient in GRADIENTS) for row in union}

    box(0.5, 0.5, WIDTH - 1, HEIGHT - 1, "card", 8)

    text(LEFT, 30, f"one step of a tensor of {len(OWNER)} rows", "small")
    text(RIGHT + BOX, 30, "dashed: control, JSON-RPC over TCP", "small end")
    centre, half = SERVER_X + SERVER_W / 2, COORDINATOR_W / 2
    for x, edge in ((LEFT + BOX / 2, centre - half), (RIGHT + BOX / 2, centre + half)):
        out.append(f'<path d="M{edge:g} 45 H{x:g} V{RANK_Y[-1]}" class="control"/>')
    out.append(f'<path d="M{centre:g} 70 V{SERVER_Y[-1]}" class="control"/>')
    box(centre - half, 20, COORDINATOR_W, 50, "box")
    text(centre, 41, "coordinator", "title middle")
    text(centre, 59, "members, hash seed, owners of rows", "small middle")

    for number, gradient in enumerate(GRADIENTS):
        rank(LEFT, RANK_Y[number], f"rank {number}", gradient, "its gradient")
        rank(RIGHT, RANK_Y[number], f"rank {number}", total, "the sum")
    for number in (0, 1):
        server(number, [row for row in union if OWNER[row] == number])
        for index in range(len(GRADIENTS)):
            at = RANK_Y[index] + RANK_H / 2 + (number - 0.5) * 20
            port = SERVER_Y[number] + SERVER_H / 2 + (index - 1) * 20
            way(LEFT + BOX, at, SERVER_X - 3, port, number)
            way(SERVER_X + SERVER_W, port, RIGHT - 3, at, number)

    steps = [("1 encode", ["Rows that are not zero", "are dealt to the servers", "by a hash of their number"]),
             ("2 push", ["Every rank announces its", "rows to each server,", "which reads them"]),
             ("3 sum", ["Servers add in rank order:", "the same bits on every", "rank and in every run"]),
             ("4 pull", ["Servers announce sums as", "they are made, and every", "rank reads them"]),
             ("5 decode", ["Every rank has the sum,", "as a dense tensor", "or as a list of rows"])]
    for column, (head, lines) in enumerate(steps):
        x = LEFT + column * CAPTION_W
        text(x, 378, head, "step")
        for line, words in enumerate(lines):
            text(x, 400 + 18 * line, words, "small")

    head = f'''<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"
  role="img" aria-labelledby="title desc">
<title id="title">One step of zenps</title>
<desc id="desc">Three ranks encode their sparse gradients and announce their rows to two servers, which read them. Each server
sums its rows in rank order and announces the sums, which every rank reads. A coordinator says who takes part and which server
owns which row.</desc>
<style>{STYLE}</style>
'''
    path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("overview.svg"))
    path.write_text(head + "\n".join(out) + "\n</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    main()
