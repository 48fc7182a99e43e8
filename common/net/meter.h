/*
 * The links of an endpoint, as its reads and the trips reported to it find them: a rate, from the periods with reads in
 * flight, and a latency. Pure: no clock, no network.
 */
#ifndef ZPS_NET_METER_H
#define ZPS_NET_METER_H

#include <stdint.h>

/* All zeros: nothing is known. */
struct zps_meter {
  uint64_t since_ns, period_bytes; /* begin of the period with reads in flight, and the bytes that have come since */
  uint64_t busy_ns, busy_bytes;    /* of such periods */
  uint64_t least_trip_ns;          /* of messages and small pieces; 0: none has come */
};

/* The first read in flight, bytes that came, and the last one in. */
void zps_meter_start(struct zps_meter *meter, uint64_t now_ns);
void zps_meter_add(struct zps_meter *meter, uint64_t bytes);
void zps_meter_stop(struct zps_meter *meter, uint64_t now_ns);
/* The last read in flight has failed: most of the period's time is that of the failure, so it tells no rate. */
void zps_meter_forget(struct zps_meter *meter);
/* A round trip that is mostly latency. */
void zps_meter_trip(struct zps_meter *meter, uint64_t trip_ns);

/* Bytes a second while anything was in flight, lately; 0: too little has come to tell. */
double zps_meter_rate(const struct zps_meter *meter);
/* Half of the shortest trip; 0: there was none. */
double zps_meter_latency_s(const struct zps_meter *meter);

#endif
