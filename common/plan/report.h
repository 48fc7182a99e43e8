/* The report of a rank on a tensor whose scheme is "auto", with its question for the schemes of further steps. */
#ifndef ZPS_PLAN_REPORT_H
#define ZPS_PLAN_REPORT_H

#include "common/plan/calibration.h"
#include "common/plan/schedule.h"
#include "common/plan/sketch.h"

struct zps_plan_request {
  struct zps_plan_report report;
  double bandwidth, latency_s;             /* of this rank's link, bytes/s and one way; 0: not measured */
  uint32_t cores;                          /* of this rank's host; 0: not said */
  bool lists;                              /* results are wanted as lists of rows */
  struct zps_plan_calibration calibration; /* of this rank's machine; zeroed: not measured */
  const struct zps_plan_sketch *sketch;    /* of this rank's rows at one step; NULL: none */
};

/* The members of a calibration that travel, by name. */
#define ZPS_PLAN_COSTS(X) \
  X(scan_value_ns)        \
  X(encode_row_ns)        \
  X(encode_value_ns)      \
  X(reduce_row_ns)        \
  X(reduce_value_ns)      \
  X(decode_row_ns)        \
  X(decode_value_ns)      \
  X(clear_value_ns) X(add_value_ns) X(select_value_ns) X(threads) X(move_byte_ns) X(message_ns) X(overlap)

#endif
