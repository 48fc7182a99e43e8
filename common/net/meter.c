#include "common/net/meter.h"

#include "common/base/clock.h"

enum {
  PERIOD_LEAST = 32 << 10, /* bytes of a period that says something about rates */
  RATE_LEAST = 256 << 10,  /* bytes that a rate is told from */
  RATE_MOST = 32 << 20,    /* beyond, earlier ones count for less */
};

void zps_meter_start(struct zps_meter *meter, uint64_t now_ns) {
  meter->since_ns = now_ns;
}

void zps_meter_add(struct zps_meter *meter, uint64_t bytes) {
  meter->period_bytes += bytes;
}

void zps_meter_stop(struct zps_meter *meter, uint64_t now_ns) {
  const uint64_t took_ns = now_ns - meter->since_ns, came = meter->period_bytes, trip_ns = meter->least_trip_ns;
  meter->period_bytes = 0;
  if (came < PERIOD_LEAST) return; /* its time is latency */
  meter->busy_bytes += came;
  meter->busy_ns += took_ns > 2 * trip_ns ? took_ns - trip_ns : took_ns / 2;
  while (meter->busy_bytes > RATE_MOST) {
    meter->busy_bytes /= 2;
    meter->busy_ns /= 2;
  }
}

void zps_meter_forget(struct zps_meter *meter) {
  meter->period_bytes = 0;
}

void zps_meter_trip(struct zps_meter *meter, uint64_t trip_ns) {
  if (meter->least_trip_ns == 0 || trip_ns < meter->least_trip_ns) meter->least_trip_ns = trip_ns;
}

double zps_meter_rate(const struct zps_meter *meter) {
  if (meter->busy_bytes < RATE_LEAST || meter->busy_ns == 0) return 0;
  return (double)meter->busy_bytes / ((double)meter->busy_ns / ZPS_NS_PER_S);
}

double zps_meter_latency_s(const struct zps_meter *meter) {
  return (double)meter->least_trip_ns / 2 / ZPS_NS_PER_S;
}
