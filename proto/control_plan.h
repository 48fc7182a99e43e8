/* Messages about tensors whose scheme is "auto": tensor.report of a worker, and tensor.plan, the coordinator's word. */
#ifndef ZPS_PROTO_CONTROL_PLAN_H
#define ZPS_PROTO_CONTROL_PLAN_H

#include "common/plan/report.h"
#include "proto/control.h"

struct zps_tensor_report {
  uint64_t job_id;
  uint32_t tensor;
  struct zps_plan_request told;
};
ZPS_MESSAGE_WRITER(report, struct zps_tensor_report)
/* The sketch, if there is one, goes to *sketch, which the report points to. Impossible measures are left out. */
zps_err_t zps_control_report_read(const zps_json *params, struct zps_tensor_report *report,
                                  struct zps_plan_sketch *sketch, struct zps_error *error) ZPS_MUSTCHECK;

struct zps_tensor_plan {
  uint64_t job_id;
  uint32_t tensor;
  bool whole; /* all runs that are remembered; else one, the next */
  unsigned n;
  struct zps_plan_run runs[ZPS_PLAN_RUNS];
};
ZPS_MESSAGE(plan, struct zps_tensor_plan)

#endif
