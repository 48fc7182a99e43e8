/*
 * The cost of a round under each scheme: bytes by the papers' formulas, extended by our codecs, and time from bytes,
 * messages and values. Pure arithmetic on a description of the cluster, the tensor and its gradients; the library, the
 * coordinator and zenpsctl plan share it, so all decide alike.
 *
 * Notation as in the papers: n ranks, d density of one rank's rows, gamma_k densification of k ranks, alpha latency,
 * R ranks per host.
 *
 * A host's link carries the bytes that its R ranks and the servers on it send to other hosts; each direction on its
 * own. Ranks of one host are neighbours in rank order. Time = the sum over a scheme's phases of latency and of the
 * slowest link's bytes, and computing at a rank and at a server.
 */
#ifndef ZPS_PLAN_MODEL_H
#define ZPS_PLAN_MODEL_H

#include "common/plan/calibration.h"
#include "common/plan/profile.h"
#include "common/plan/schemes.h"

struct zps_plan_link {
  double bandwidth; /* bytes/s, each direction */
  double latency_s; /* alpha: one way */
};

struct zps_plan_cluster {
  uint32_t n;              /* ranks, at least 1 */
  uint32_t ranks_per_host; /* R, at least 1 */
  uint32_t hosts_per_rack; /* 0: no racks */
  uint32_t cores;          /* of a host, which its ranks and servers share; 0: as many as they can use */
  uint32_t servers;        /* 0: one per host */
  bool servers_apart;      /* on hosts of their own, with links as the ranks' hosts have; else on the ranks' hosts */
  struct zps_plan_link net, host; /* a host's link; between two ranks of one host */
  struct zps_plan_link rack;      /* a rack's uplink, for BlueConnect; as above where there are racks */
};

struct zps_plan_tensor {
  uint64_t rows;
  uint32_t width;
  double value_bytes;  /* of the dtype */
  double served_bytes; /* a value's bytes to and from servers, where they travel narrowed; 0: value_bytes */
};

/* The coding of index sets; the papers' figures hold for PAPER and COO. */
enum zps_plan_codec {
  ZPS_PLAN_CODEC_AUTO,  /* ours: the smallest code, at its entropy */
  ZPS_PLAN_CODEC_PAPER, /* each paper's: COO to Zen's servers and its hash bitmap back; SparCML's streams */
  ZPS_PLAN_CODEC_COO,   /* an index and values, everywhere: Zen's equations 1 and 2, Ok-Topk's table 1 */
};
#define ZPS_PLAN_CODEC_NAME_LIST "auto", "paper", "coo"

struct zps_plan_input {
  struct zps_plan_cluster cluster;
  struct zps_plan_tensor tensor;
  struct zps_plan_profile profile;
  struct zps_plan_calibration calibration; /* zeroed: computing costs nothing, as in the papers */
  enum zps_plan_codec codec;
  double imbalance; /* heaviest hashed partition over the mean (Zen, definition 8); 0: 1 */
  uint64_t k;       /* rows that lossy schemes keep; 0: those of one rank */
  uint32_t bits;    /* DSAR: QSGD bits of its dense half; 0: exact */
  bool published;   /* messages as the papers' formulas have them; else as worker/schemes sends them */
};

/* Bytes are of one round, each direction, of the rank, host or server with most; those that a rank keeps for itself do
 * not count. */
struct zps_plan_cost {
  double time_s, latency_s, wire_s, compute_s; /* time_s is the sum of the others */
  double rank_out, rank_in;                    /* of a rank, within its host and beyond */
  double host_out, host_in;                    /* through a host's link: of its ranks, and of servers on it */
  double server_out, server_in;                /* of a server; 0 for schemes between ranks */
  double messages; /* most messages from one rank to other ranks or servers; a message in pieces counts once */
};

/* A description that no formula can take is refused; the error names the right form. */
zps_err_t zps_plan_check(const struct zps_plan_input *input, struct zps_error *error) ZPS_MUSTCHECK;
/* `scheme` is one of ZPS_PLAN_SCHEMES, `input` was checked. */
void zps_plan_predict(const struct zps_plan_input *input, enum zps_plan_scheme scheme, struct zps_plan_cost *cost);
/* The fastest of the schemes in `allowed` (bits 1u << scheme, not empty); the first among equals. */
enum zps_plan_scheme zps_plan_fastest(const struct zps_plan_input *input, unsigned allowed);
/* Schemes whose results are exact. */
unsigned zps_plan_lossless(void);

/* The fewest servers with which `scheme` takes at most `slack` (such as 1.05) of its time with the best number out of
 * 1..most; 0 for schemes without servers. */
uint32_t zps_plan_servers_worth(const struct zps_plan_input *input, enum zps_plan_scheme scheme, uint32_t most,
                                double slack);

/* Bytes of a message about z rows out of m, real numbers both. */
enum zps_plan_message { ZPS_PLAN_PUSH, ZPS_PLAN_PULL, ZPS_PLAN_STREAM };
double zps_plan_message_bytes(const struct zps_plan_input *input, enum zps_plan_message message, double m, double z);

#endif
