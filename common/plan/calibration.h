/*
 * The costs of computing and messages on the machines at hand: constants from tests/bench, and how they are brought to
 * another machine. A calibration of zeros is the papers' world, where only bytes and latency count.
 */
#ifndef ZPS_PLAN_CALIBRATION_H
#define ZPS_PLAN_CALIBRATION_H

struct zps_plan_calibration {
  /* Nanoseconds of one core. */
  double scan_value_ns;                  /* look for values other than zero, per value of a dense gradient; 0: rows come
                                          * in */
  double encode_row_ns, encode_value_ns; /* deal out, size and write, per row and per value sent */
  double reduce_row_ns, reduce_value_ns; /* check and add, per row and per value of a contribution */
  double decode_row_ns, decode_value_ns; /* into the result */
  double clear_value_ns;                 /* zero a dense result, per value; 0: rows go out */
  double add_value_ns;                   /* dense + dense, per value */
  double select_value_ns;                /* top-k, per value looked at */
  double threads;                        /* threads that share the work; 0: 1 */
  double move_byte_ns;                   /* a byte that the processor moves to or from the fabric */
  double message_ns;                     /* wake up for a message, look at it, and answer */
  /* Messages. */
  double announced;   /* latencies of a message that is announced and then read; 0: 1 */
  double eager_bytes; /* below, the payload travels in the announcement: one latency */
  double frame_bytes; /* overhead of a message */
  double gap_s;       /* from one message to the next at one rank; 0: the latency, as SparCML has it */
  double overlap;     /* 0..1: how much of a server's pushes and pulls runs at once */
};

/* Of an EPYC core (Zen 5) with AVX-512, from codec-bench; frames and announcements as PROTOCOL.md has them. */
void zps_plan_calibration_default(struct zps_plan_calibration *calibration);
/*
 * Every computing constant times `factor`: how long this machine takes to copy memory, over what that one took, which
 * was 0.224 ns a float.
 */
void zps_plan_calibration_scale(struct zps_plan_calibration *calibration, double factor);

#endif
