"""What came of a run."""
from .job import touches
from .leftovers import compare


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def overlap(a, b):
    return a is not b and any(x[0] <= y[1] and y[0] <= x[1] for x in a.windows for y in b.windows)


def attribute(driver):
    """Gives each fault the extra time of the slowest step that it touched."""
    medians = {job.name: job.median_ms(driver.over) for job in driver.jobs}
    jobs = {job.name: job for job in driver.jobs}
    for fault in driver.over:
        times = [end - begin for begin, end in jobs[fault.job].steps if touches(fault, begin, end)]
        fault.extra_ms = max(0.0, max(times) / 1000 - medians[fault.job]) if times else None
        fault.is_alone = not any(overlap(fault, other) for other in driver.over)
    return medians


def spread(values):
    return {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": max(values, default=None)}


def result(driver, args, seconds, stuck):
    medians = attribute(driver)
    kinds = {}
    for fault in driver.over:
        length = f" {fault.length}" if fault.kind.end and len(fault.kind.lengths) > 1 else ""
        kinds.setdefault(fault.kind.name + length, []).append(fault)
    rows = [{"kind": name, "faults": len(faults), "alone": sum(fault.is_alone for fault in faults),
             "extra_ms": spread([fault.extra_ms for fault in faults if fault.is_alone and fault.extra_ms is not None])}
            for name, faults in sorted(kinds.items())]
    wrong = {what: [text for job in driver.jobs for text in getattr(job, what)] for what in ("hangs", "wrong", "lost", "errors", "died")}
    wrong["died"] += driver.died
    left = compare(driver.base, driver.end) if driver.base and driver.end else []
    left += [f"a rank had {more} more descriptors at the end of {job.name} than at its start" for job in driver.jobs for more, _ in job.grown
             if more > 4]
    return {"seed": args.seed, "faults_asked": args.faults, "faults": len(driver.over), "seconds": round(seconds, 1),
            "jobs": len(driver.jobs), "steps": sum(len(job.steps) for job in driver.jobs),
            "median_ms": percentile([ms for ms in medians.values() if ms], 0.5), "kinds": rows,
            "extra_ms": spread([fault.extra_ms for fault in driver.over if fault.extra_ms is not None]),
            "hangs": wrong["hangs"], "wrong_sums": wrong["wrong"], "lost_steps": wrong["lost"], "errors": wrong["errors"],
            "deaths": wrong["died"], "left_overs": left, "stuck": stuck, "before": driver.base, "after": driver.end,
            "rank_grew_kib": max((kib for job in driver.jobs for _, kib in job.grown), default=None),
            "passed": not any(wrong.values()) and not left and not stuck and len(driver.over) == args.faults}


def shown(value):
    return "" if value is None else f"{value:.0f}"


def text(out):
    lines = [f"seed {out['seed']}: {out['faults']} faults in {out['seconds']:.0f} s, {out['jobs']} jobs, {out['steps']} steps of "
             f"{shown(out['median_ms'])} ms", "", "| kind | faults | alone | extra ms: p50 | p99 | max |", "|---|---:|---:|---:|---:|---:|"]
    for row in out["kinds"]:
        lines.append(f"| {row['kind']} | {row['faults']} | {row['alone']} | " + " | ".join(shown(row["extra_ms"][name]) for name in ("p50", "p99", "max")) + " |")
    lines.append(f"| all, also together | {out['faults']} | | " + " | ".join(shown(out["extra_ms"][name]) for name in ("p50", "p99", "max")) + " |")
    if out["after"]:
        lines += ["", "| idle | resident KiB before | after | descriptors before | after | registered KiB before | after |", "|---|---:|---:|---:|---:|---:|---:|"]
        for who in ("coordinator", "largest server"):
            before, after = ([side["coordinator"]] if who == "coordinator" else list(side["servers"].values()) for side in (out["before"], out["after"]))
            cells = [str(max(row[what] for row in side)) for what in ("resident_kib", "descriptors") for side in (before, after)]
            cells += ["", ""] if who == "coordinator" else [str(max(row["registered_bytes"] for row in side) >> 10) for side in (before, after)]
            lines.append(f"| {who} | " + " | ".join(cells) + " |")
    lines += ["", f"hangs {len(out['hangs'])}, wrong sums {len(out['wrong_sums'])}, lost steps {len(out['lost_steps'])}, errors {len(out['errors'])}, "
              f"deaths {len(out['deaths'])}, left-overs {len(out['left_overs'])}: " + ("passed" if out["passed"] else "FAILED")]
    for what in ("hangs", "wrong_sums", "lost_steps", "errors", "deaths", "left_overs"):
        lines += [f"  {what}: {sentence}" for sentence in out[what]]
    if out["stuck"]:
        lines.append(f"  {out['stuck']}")
    return "\n".join(lines)
