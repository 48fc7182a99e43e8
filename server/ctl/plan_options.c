#include "common/base/exit.h"
#include "common/codec/values.h"
#include "server/ctl/plan.h"

const char *const zps_ctl_plan_dtypes[] = {"f32", "f64", "bf16", "f16", NULL};
static const char *const values[] = {ZPS_VALUES_NAME_LIST, NULL};
static const char *const overlaps[] = {"independent", "disjoint", NULL};
static const char *const codecs[] = {ZPS_PLAN_CODEC_NAME_LIST, NULL};
static const char *const computes[] = {"auto", "yes", "no", NULL};

#define OPT(type, member, ...) \
  ZPS_OPT_ROW(struct zps_ctl_plan_options, type, member, .flags = ZPS_OPT_FLAG_ONLY, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_UINT, workers, .name = "workers", .short_flag = 'n', .def = "16", .min = 1, .max = 65536, .arg = "N",
        .help = "number of ranks"),
    OPT(ZPS_OPT_UINT, workers_max, .name = "workers-max", .def = "128", .min = 2, .max = 65536, .arg = "N",
        .help = "largest number of ranks in tables, crossings and drawings"),
    OPT(ZPS_OPT_UINT, ranks_per_host, .name = "ranks-per-host", .def = "1", .min = 1, .max = 1024, .arg = "R",
        .help = "ranks per host; they share its link"),
    OPT(ZPS_OPT_UINT, hosts_per_rack, .name = "hosts-per-rack", .def = "0", .min = 0, .max = 4096, .arg = "N",
        .help = "hosts per rack uplink, for blueconnect; 0: no racks"),
    OPT(ZPS_OPT_UINT, servers, .name = "servers", .short_flag = 's', .def = "0", .min = 0, .max = 65536, .arg = "N",
        .help = "servers; 0: one per host"),
    OPT(ZPS_OPT_BOOL, servers_apart, .name = "servers-apart",
        .help = "servers are on hosts of their own, with links like the ranks' (default: on the ranks' hosts)"),
    OPT(ZPS_OPT_DOUBLE, bandwidth_gbit, .name = "bandwidth", .short_flag = 'b', .def = "25", .min = 1e-3, .max = 1e6,
        .arg = "GBIT/S", .help = "bandwidth of a host's link, each direction"),
    OPT(ZPS_OPT_DOUBLE, latency_us, .name = "latency", .short_flag = 'l', .def = "10", .min = 0, .max = 1e7,
        .arg = "US", .help = "latency of a message between hosts, one way, in microseconds"),
    OPT(ZPS_OPT_DOUBLE, host_bandwidth_gbit, .name = "host-bandwidth", .def = "80", .min = 1e-3, .max = 1e6,
        .arg = "GBIT/S", .help = "bandwidth between ranks of one host"),
    OPT(ZPS_OPT_DOUBLE, host_latency_us, .name = "host-latency", .def = "1", .min = 0, .max = 1e7, .arg = "US",
        .help = "latency of a message within a host, in microseconds"),
    OPT(ZPS_OPT_DOUBLE, rack_bandwidth_gbit, .name = "rack-bandwidth", .def = "100", .min = 1e-3, .max = 1e6,
        .arg = "GBIT/S", .help = "bandwidth of a rack's uplink"),
    OPT(ZPS_OPT_UINT, rows, .name = "rows", .short_flag = 'r', .def = "0", .min = 0, .max = 1e15, .arg = "N",
        .help = "rows of the tensor; 0: those of --trace, or a million"),
    OPT(ZPS_OPT_UINT, width, .name = "width", .short_flag = 'w', .def = "1", .min = 1, .max = 1 << 24, .arg = "N",
        .help = "values of a row"),
    OPT(ZPS_OPT_ENUM, dtype, .name = "dtype", .def = "f32", .values = zps_ctl_plan_dtypes, .arg = "TYPE",
        .help = "f32, f64, bf16 or f16"),
    OPT(ZPS_OPT_ENUM, values, .name = "values", .def = "raw", .values = values, .arg = "CODEC",
        .help = "encoding of values to and from servers: raw, bf16, f16, qsgd2, qsgd4 or qsgd8"),
    OPT(ZPS_OPT_DOUBLE, density, .name = "density", .short_flag = 'd', .def = "0.01", .min = 0, .max = 1, .arg = "D",
        .help = "share of rows that are not zero on one rank"),
    OPT(ZPS_OPT_ENUM, overlap, .name = "overlap", .def = "independent", .values = overlaps, .arg = "HOW",
        .help = "how rows of ranks overlap, without --gamma: independent or disjoint"),
    OPT(ZPS_OPT_STRING, gamma, .name = "gamma", .short_flag = 'g', .arg = "CURVE",
        .help = "densification: rows of k ranks together over those of one, as k:gamma,..., for example 2:1.6,16:6.2"),
    OPT(ZPS_OPT_STRING, skew, .name = "skew", .arg = "CURVE",
        .help = "density of the densest of p even parts over the mean, as p:skew,..., for example 8:4.8,128:44 "
                "(default: even)"),
    OPT(ZPS_OPT_DOUBLE, run, .name = "run", .def = "0", .min = 0, .max = 1e9, .arg = "VALUES",
        .help = "neighbouring values that are zero or not zero together, for omnireduce's blocks; 0: a row"),
    OPT(ZPS_OPT_DOUBLE, block_density, .name = "block-density", .def = "0", .min = 0, .max = 1, .arg = "D",
        .help = "share of blocks of 256 values that are not zero; 0: from density and run"),
    OPT(ZPS_OPT_STRING, trace, .name = "trace", .short_flag = 't', .arg = "FILE",
        .help = "measure density, gamma, skew and blocks from this trace (row numbers or libsvm, a sample a line; -: "
                "standard input)"),
    OPT(ZPS_OPT_UINT, batch, .name = "batch", .def = "128", .min = 1, .max = 1e9, .arg = "N",
        .help = "samples of the trace per rank and step"),
    OPT(ZPS_OPT_UINT, trace_steps, .name = "trace-steps", .def = "5", .min = 1, .max = 10000, .arg = "N",
        .help = "steps to average over"),
    OPT(ZPS_OPT_UINT, seed, .name = "seed", .def = "1", .min = 0, .max = 4294967295.0, .arg = "N",
        .help = "seed of the choice of samples for a step"),
    OPT(ZPS_OPT_ENUM, codec, .name = "codec", .short_flag = 'c', .def = "auto", .values = codecs, .arg = "CODEC",
        .help = "auto: zenps's own, the smallest; paper: COO to servers and a bitmap back, streams that switch to "
                "dense; coo: an index per row everywhere"),
    OPT(ZPS_OPT_DOUBLE, imbalance, .name = "imbalance", .def = "1", .min = 1, .max = 1e6, .arg = "X",
        .help = "heaviest hashed partition over the mean"),
    OPT(ZPS_OPT_ENUM, compute, .name = "compute", .def = "auto", .values = computes, .arg = "WHETHER",
        .help = "count computing, frames and announcements: yes; no: as in the papers; auto: yes with --codec auto, "
                "else no"),
    OPT(ZPS_OPT_BOOL, as_published, .name = "as-published",
        .help = "messages as in the papers' formulas: allgathers and two-level by trees, topkdsa sparse where that is "
                "smaller (default: messages of zenps's own programs)"),
    OPT(ZPS_OPT_DOUBLE, machine, .name = "machine", .def = "1", .min = 1e-3, .max = 1e3, .arg = "X",
        .help = "computing time on this machine over that of the constants' machine (tests/bench)"),
    OPT(ZPS_OPT_DOUBLE, threads, .name = "threads", .def = "1", .min = 1, .max = 1024, .arg = "N",
        .help = "computing threads of a rank, and of a server"),
    OPT(ZPS_OPT_BOOL, rows_in, .name = "rows-in", .help = "gradients and results are lists of rows, not dense arrays"),
    OPT(ZPS_OPT_STRING, schemes, .name = "schemes", .arg = "NAME,...[,OPTION=VALUE,...]",
        .help = "schemes to compare (default: all; lossless: those with exact results), and their options k, density "
                "and bits, for example all,k=1000,bits=4 or oktopk:k=1000 (default of k: as many rows as a rank has)"),
    OPT(ZPS_OPT_BOOL, json, .name = "json", .short_flag = 'j', .help = "print one JSON object instead of tables"),
    OPT(ZPS_OPT_STRING, svg, .name = "svg", .arg = "FILE",
        .help = "draw the time of each scheme over the number of ranks, with gnuplot"),
    {0},
};

const struct zps_opt_table zps_ctl_plan_table = {
    .program = "zenpsctl plan",
    .summary = "predict what each scheme costs on a cluster, and which is fastest",
    .description =
        "Prints the time of each scheme over the number of ranks n. For --workers ranks it prints the parts of that "
        "time. It prints the bytes of a rank, of a host's link and of a server, each direction. It prints the fastest "
        "scheme for each range of n, and where each gets slower or faster than a dense ring. It prints how many "
        "servers are worth having. Schemes are zenps's own programs, with its codecs unless --codec is given. "
        "--as-published uses the formulas of the papers, which have fewer messages for some schemes.\n"
        "Zen's own case, NMT on 25 Gbit/s, with the densification of words by Zipf's law: zenpsctl plan --rows "
        "112000000 --density 0.0247 --gamma 2:1.8,4:3.1,8:5.2,16:8.6,32:14,64:20,128:28 --skew 8:5.2,128:28 --run 512 "
        "--latency 0 --codec paper --as-published\n"
        "From a trace: xz -dc words.ids.xz | zenpsctl plan --trace - --width 64 --batch 128",
    .opts = opts,
    .config_size = sizeof(struct zps_ctl_plan_options),
    .exits = ZPS_EXITS_LOCAL,
};
