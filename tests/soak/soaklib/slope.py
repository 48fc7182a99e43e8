"""What daemons hold, job by job, and whether it grows."""


def least_squares(points):
    """The slope of the line through (x, y); 0 for less than two."""
    n = len(points)
    mean_x, mean_y = (sum(point[i] for point in points) / max(n, 1) for i in (0, 1))
    over = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / over if over else 0.0


def series(samples):
    """{(daemon, what): [(jobs, value)]} of (jobs, measure()); memory in bytes."""
    out = {}
    for jobs, held in samples:
        for name, row in [("coordinator", held["coordinator"]), *held["servers"].items()]:
            out.setdefault((name, "resident"), []).append((jobs, 1024 * row["resident_kib"]))
            out.setdefault((name, "descriptors"), []).append((jobs, row["descriptors"]))
            if "registered_bytes" in row:
                out.setdefault((name, "registered"), []).append((jobs, row["registered_bytes"]))
    return out


def slopes(samples):
    """Rows of {daemon, what, first, last, per_job}. Buffers, pools and tables reach their size in the first half: the slope is the second's."""
    rows = []
    for (name, what), points in sorted(series(samples).items()):
        half = [point for point in points if 2 * point[0] >= points[-1][0]]
        rows.append({"daemon": name, "what": what, "first": points[0][1], "last": points[-1][1], "per_job": least_squares(half)})
    return rows


def too_steep(rows, limit, descriptors_limit):
    """Sentences."""
    return [f"{row['daemon']}: {row['what']} grows by {row['per_job']:.3g} a job: at most {most:g}"
            for row in rows for most in [descriptors_limit if row["what"] == "descriptors" else limit] if row["per_job"] > most]
