/* Results as tables: one per array of rows, aligned, without colour, for people and for awk alike (a cell without text
 * is
 * "-"). */
#ifndef ZPS_SERVER_CTL_TABLE_H
#define ZPS_SERVER_CTL_TABLE_H

#include <stdio.h>

#include "common/control/json.h"

/* `noun` chooses the columns. */
zps_err_t zps_ctl_table_print(FILE *out, const char *noun, const zps_json *result) ZPS_MUSTCHECK;

/* Calls `each` with every column of the noun's tables, from left to right. */
void zps_ctl_table_columns(const char *noun,
                           void (*each)(void *ctx, const char *array, const char *key, const char *title), void *ctx);

#endif
