#include "common/plan/calibration.h"

void zps_plan_calibration_default(struct zps_plan_calibration *calibration) {
  *calibration = (struct zps_plan_calibration){
      /* 0.20 ns a value at 1% density, 0.35 at 5%, 0.93 at 20%: a scan and 3.6 ns for each value found. */
      .scan_value_ns = 0.16,
      .encode_row_ns = 3.0,
      .encode_value_ns = 0.6,
      /* 2.4 ns a row of one value, 0.86 ns a value in rows of 64. */
      .reduce_row_ns = 1.6,
      .reduce_value_ns = 0.8,
      .decode_row_ns = 1.7,
      .decode_value_ns = 0.4,
      .clear_value_ns = 0.1,
      .add_value_ns = 0.3,
      .select_value_ns = 1.0,
      .threads = 1,
      .announced = 3,
      .eager_bytes = 4096,
      .frame_bytes = 110,
      .gap_s = 3e-6,
  };
}

void zps_plan_calibration_scale(struct zps_plan_calibration *calibration, double factor) {
  calibration->scan_value_ns *= factor;
  calibration->encode_row_ns *= factor;
  calibration->encode_value_ns *= factor;
  calibration->reduce_row_ns *= factor;
  calibration->reduce_value_ns *= factor;
  calibration->decode_row_ns *= factor;
  calibration->decode_value_ns *= factor;
  calibration->clear_value_ns *= factor;
  calibration->add_value_ns *= factor;
  calibration->select_value_ns *= factor;
}
