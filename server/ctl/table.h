/* Results as tables: one per array of rows, aligned, without colour, for people and for awk alike (a cell without text
 * is
 * "-"). */
#ifndef ZPS_SERVER_CTL_TABLE_H
#define ZPS_SERVER_CTL_TABLE_H

#include <stdio.h>

#include "common/control/json.h"

/* `noun` chooses the columns. */
zps_err_t zps_ctl_table_print(FILE *out, const char *noun, const zps_json *result) ZPS_MUSTCHECK;

#endif
