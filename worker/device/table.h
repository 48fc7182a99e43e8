/* The table of hashed rows (common/codec/partition_table.h) in device memory. */
#ifndef ZPS_WORKER_DEVICE_TABLE_H
#define ZPS_WORKER_DEVICE_TABLE_H

#include "common/codec/partition.h"
#include "gpu/device.h"

/* Copies the table of `part`, waits until it is there, and sets *device_part_p to the partition that knows of the copy;
 * *table_p is for zps_device_table_release(). The device goes on with other work. */
zps_err_t zps_device_table_create(struct zps_device *device, const struct zps_partition *part,
                                  struct zps_partition *device_part_p, void **table_p,
                                  struct zps_error *error) ZPS_MUSTCHECK;
void zps_device_table_release(struct zps_device *device, void *table); /* NULL is allowed */

#endif
