#include "server/ctl/ctl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

enum { COLUMNS_MAX = 28, CELL_MAX = 200 };

enum kind { PLAIN, BYTES, RATE };

struct column {
  const char *key, *title;
  enum kind kind;
};

struct view {
  const char *noun, *array;
  struct column columns[COLUMNS_MAX]; /* ends with a column without key */
};

static const struct view views[] = {
    {"status",
     "coordinator",
     {{"address", "ADDRESS", PLAIN},
      {"state", "STATE", PLAIN},
      {"version", "VERSION", PLAIN},
      {"protocol", "PROTOCOL", PLAIN},
      {"pid", "PID", PLAIN},
      {"uptime_s", "UPTIME/s", RATE},
      {"epoch", "EPOCH", PLAIN},
      {"servers", "SERVERS", PLAIN},
      {"servers_draining", "DRAINING", PLAIN},
      {"jobs", "JOBS", PLAIN},
      {"ranks", "RANKS", PLAIN},
      {"tensors", "TENSORS", PLAIN}}},
    {"members",
     "servers",
     {{"server", "SERVER", PLAIN},
      {"name", "NAME", PLAIN},
      {"state", "STATE", PLAIN},
      {"host", "HOST", PLAIN},
      {"pid", "PID", PLAIN},
      {"provider", "PROVIDER", PLAIN},
      {"keys", "KEYS", PLAIN},
      {"address", "ADDRESS", PLAIN},
      {"jobs", "JOBS", PLAIN},
      {"silent_ms", "SILENT/ms", PLAIN},
      {"clock_ms", "CLOCK/ms", RATE},
      {"clock_error_ms", "ERROR/ms", RATE},
      {"version", "VERSION", PLAIN}}},
    {"members",
     "ranks",
     {{"job", "JOB", PLAIN},
      {"rank", "RANK", PLAIN},
      {"state", "STATE", PLAIN},
      {"host", "HOST", PLAIN},
      {"pid", "PID", PLAIN},
      {"provider", "PROVIDER", PLAIN},
      {"keys", "KEYS", PLAIN},
      {"address", "ADDRESS", PLAIN},
      {"memory", "MEMORY", PLAIN},
      {"silent_ms", "SILENT/ms", PLAIN},
      {"clock_ms", "CLOCK/ms", RATE},
      {"clock_error_ms", "ERROR/ms", RATE},
      {"version", "VERSION", PLAIN}}},
    {"members",
     "unreachable",
     {{"job", "JOB", PLAIN},
      {"server", "SERVER", PLAIN},
      {"name", "NAME", PLAIN},
      {"rank", "RANK", PLAIN},
      {"ranks", "RANKS", PLAIN},
      {"out_s", "OUT/s", RATE},
      {"again_s", "AGAIN/s", RATE},
      {"reason", "REASON", PLAIN}}},
    {"security",
     "parts",
     {{"part", "PART", PLAIN}, {"state", "STATE", PLAIN}, {"how", "HOW", PLAIN}, {"close", "TO CLOSE IT", PLAIN}}},
    {"drain",
     "servers",
     {{"name", "NAME", PLAIN}, {"state", "STATE", PLAIN}, {"host", "HOST", PLAIN}, {"jobs", "JOBS", PLAIN}}},
    {"drain",
     "jobs",
     {{"job", "JOB", PLAIN}, {"job_id", "ID", PLAIN}, {"outcome", "OUTCOME", PLAIN}, {"reason", "REASON", PLAIN}}},
    {"rebalance",
     "jobs",
     {{"job", "JOB", PLAIN},
      {"job_id", "ID", PLAIN},
      {"outcome", "OUTCOME", PLAIN},
      {"servers", "SERVERS", PLAIN},
      {"partitions", "PARTITIONS", PLAIN},
      {"reason", "REASON", PLAIN}}},
    {"kick",
     "ranks",
     {{"job", "JOB", PLAIN},
      {"job_id", "ID", PLAIN},
      {"rank", "RANK", PLAIN},
      {"host", "HOST", PLAIN},
      {"pid", "PID", PLAIN},
      {"job_state", "JOB-STATE", PLAIN}}},
    {"undrain",
     "servers",
     {{"name", "NAME", PLAIN}, {"state", "STATE", PLAIN}, {"host", "HOST", PLAIN}, {"jobs", "JOBS", PLAIN}}},
    {"jobs",
     "jobs",
     {{"job", "JOB", PLAIN},
      {"job_id", "ID", PLAIN},
      {"state", "STATE", PLAIN},
      {"world", "WORLD", PLAIN},
      {"joined", "JOINED", PLAIN},
      {"left", "LEFT", PLAIN},
      {"lost", "LOST", PLAIN},
      {"servers", "SERVERS", PLAIN},
      {"lost_servers", "LOST-SERVERS", PLAIN},
      {"epoch", "EPOCH", PLAIN},
      {"generation", "GENERATION", PLAIN},
      {"weight", "WEIGHT", PLAIN},
      {"tensors", "TENSORS", PLAIN},
      {"rounds", "ROUNDS", PLAIN},
      {"servers_in", "SERVERS-IN", PLAIN},
      {"places", "PLACES", PLAIN},
      {"age_s", "AGE/s", RATE},
      {"started_at", "STARTED", PLAIN},
      {"code", "CODE", PLAIN},
      {"failure", "FAILURE", PLAIN}}},
    {"jobs",
     "ended",
     {{"job", "JOB", PLAIN},
      {"job_id", "ID", PLAIN},
      {"state", "STATE", PLAIN},
      {"world", "WORLD", PLAIN},
      {"left", "LEFT", PLAIN},
      {"lost", "LOST", PLAIN},
      {"servers", "SERVERS", PLAIN},
      {"lost_servers", "LOST-SERVERS", PLAIN},
      {"epoch", "EPOCH", PLAIN},
      {"tensors", "TENSORS", PLAIN},
      {"rounds", "ROUNDS", PLAIN},
      {"bytes_out", "OUT", BYTES},
      {"bytes_in", "IN", BYTES},
      {"ran_s", "RAN/s", RATE},
      {"ended_at", "ENDED", PLAIN},
      {"code", "CODE", PLAIN},
      {"failure", "FAILURE", PLAIN}}},
    {"tensors",
     "tensors",
     {{"job", "JOB", PLAIN},
      {"tensor", "TENSOR", PLAIN},
      {"name", "NAME", PLAIN},
      {"group", "GROUP", PLAIN},
      {"state", "STATE", PLAIN},
      {"rows", "ROWS", PLAIN},
      {"width", "WIDTH", PLAIN},
      {"dtype", "DTYPE", PLAIN},
      {"op", "OP", PLAIN},
      {"partitions", "PARTITIONS", PLAIN},
      {"block_bits", "BLOCK-BITS", PLAIN},
      {"codec", "CODEC", PLAIN},
      {"values", "VALUES", PLAIN},
      {"scheme", "SCHEME", PLAIN},
      {"planned", "PLANNED", PLAIN},
      {"servers", "SERVERS", PLAIN}}},
    {"rounds",
     "rounds",
     {{"job", "JOB", PLAIN},
      {"name", "TENSOR", PLAIN},
      {"step", "STEP", PLAIN},
      {"age_ms", "AGE/ms", PLAIN},
      {"server", "SERVER", PLAIN},
      {"waits_for", "WAITS-FOR", PLAIN},
      {"n_ranks", "OF", PLAIN},
      {"ranks", "RANKS", PLAIN},
      {"left_ms", "LEFT/ms", PLAIN}}},
    {"stats",
     "servers",
     {{"server", "SERVER", PLAIN},
      {"host", "HOST", PLAIN},
      {"answer", "ANSWER", PLAIN},
      {"jobs", "JOBS", PLAIN},
      {"tensors", "TENSORS", PLAIN},
      {"rounds_in_flight", "IN-FLIGHT", PLAIN},
      {"memory_in_use_bytes", "MEM", BYTES},
      {"memory_high_water_bytes", "MEM-PEAK", BYTES},
      {"read_bytes", "READ", BYTES},
      {"msg_bytes_sent", "MSG-OUT", BYTES},
      {"msg_bytes_received", "MSG-IN", BYTES},
      {"again", "AGAIN", PLAIN},
      {"malformed", "MALFORMED", PLAIN},
      {"forged", "FORGED", PLAIN},
      {"corrupt", "CORRUPT", PLAIN},
      {"reconnects", "RECONNECTS", PLAIN},
      {"resent", "RESENT", PLAIN},
      {"reordered", "REORDERED", PLAIN}}},
    {"stats",
     "tensors",
     {{"job", "JOB", PLAIN},
      {"name", "TENSOR", PLAIN},
      {"group", "GROUP", PLAIN},
      {"scheme", "SCHEME", PLAIN},
      {"step", "STEP", PLAIN},
      {"rounds", "ROUNDS", PLAIN},
      {"failed", "FAILED", PLAIN},
      {"rounds_per_s", "ROUNDS/s", RATE},
      {"bytes_out", "OUT", BYTES},
      {"bytes_out_per_s", "OUT/s", BYTES},
      {"bytes_in", "IN", BYTES},
      {"bytes_in_per_s", "IN/s", BYTES},
      {"shared_out", "SHARED", BYTES},
      {"saved", "SAVED", RATE},
      {"density", "DENSITY", RATE},
      {"union_density", "UNION", RATE},
      {"round_ms", "ROUND/ms", RATE},
      {"encode_ms", "ENCODE/ms", RATE},
      {"push_ms", "PUSH/ms", RATE},
      {"wait_ms", "WAIT/ms", RATE},
      {"pull_ms", "PULL/ms", RATE},
      {"decode_ms", "DECODE/ms", RATE},
      {"imbalance_push", "IMB-PUSH", RATE},
      {"imbalance_pull", "IMB-PULL", RATE},
      {"told_s", "TOLD/s", RATE}}},
    {"stats",
     "ranks",
     {{"job", "JOB", PLAIN},
      {"rank", "RANK", PLAIN},
      {"host", "HOST", PLAIN},
      {"state", "STATE", PLAIN},
      {"step", "STEP", PLAIN},
      {"rounds", "ROUNDS", PLAIN},
      {"failed", "FAILED", PLAIN},
      {"bytes_out", "OUT", BYTES},
      {"bytes_in", "IN", BYTES},
      {"shared_out", "SHARED", BYTES},
      {"kept_bytes", "KEPT", BYTES},
      {"forged", "FORGED", PLAIN},
      {"corrupt", "CORRUPT", PLAIN},
      {"reconnects", "RECONNECTS", PLAIN},
      {"resent", "RESENT", PLAIN},
      {"reordered", "REORDERED", PLAIN},
      {"round_ms", "ROUND/ms", RATE},
      {"wait_ms", "WAIT/ms", RATE},
      {"pull_ms", "PULL/ms", RATE},
      {"link_bytes_per_s", "LINK/s", BYTES},
      {"late_percent", "LATE/%", RATE},
      {"late", "LATE", PLAIN},
      {"told_s", "TOLD/s", RATE}}},
    {"stats",
     "shards",
     {{"server", "SERVER", PLAIN},
      {"job", "JOB", PLAIN},
      {"name", "TENSOR", PLAIN},
      {"group", "GROUP", PLAIN},
      {"rounds", "ROUNDS", PLAIN},
      {"aborted", "ABORTED", PLAIN},
      {"rounds_per_s", "ROUNDS/s", RATE},
      {"bytes_in", "IN", BYTES},
      {"bytes_in_per_s", "IN/s", BYTES},
      {"bytes_out", "OUT", BYTES},
      {"bytes_out_per_s", "OUT/s", BYTES},
      {"density", "DENSITY", RATE},
      {"union_density", "UNION", RATE},
      {"imbalance_push", "IMB-PUSH", RATE},
      {"imbalance_pull", "IMB-PULL", RATE},
      {"imbalance_step", "IMB-STEP", RATE},
      {"collect_ms", "COLLECT/ms", RATE},
      {"reduce_ms", "REDUCE/ms", RATE},
      {"publish_ms", "PUBLISH/ms", RATE}}},
    {"stats",
     "lags",
     {{"server", "SERVER", PLAIN},
      {"job", "JOB", PLAIN},
      {"name", "TENSOR", PLAIN},
      {"group", "GROUP", PLAIN},
      {"rank", "RANK", PLAIN},
      {"lag_ms", "LAG/ms", RATE},
      {"closed_without", "WITHOUT", PLAIN}}},
    {"stats",
     "shares",
     {{"server", "SERVER", PLAIN},
      {"job", "JOB", PLAIN},
      {"weight", "WEIGHT", PLAIN},
      {"pool_bytes", "SUMMED", BYTES},
      {"pool_contested_bytes", "CONTESTED", BYTES},
      {"pool_waited_bytes", "WAITED-FOR", BYTES},
      {"memory_bytes", "MEM", BYTES}}},
};

struct table {
  const struct view *view;
  unsigned n_columns;
  size_t n_rows;
  char *cells; /* (1 + n_rows) * n_columns of CELL_MAX, titles first */
  size_t width[COLUMNS_MAX];
  bool text[COLUMNS_MAX]; /* aligned to the left */
};

static char *cell(const struct table *table, size_t row, unsigned column) {
  return table->cells + (row * table->n_columns + column) * CELL_MAX;
}

/* Characters, not bytes: continuation bytes of UTF-8 take no room. */
static size_t text_width(const char *text) {
  size_t n = 0;
  for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
  return n;
}

static void format_bytes(double bytes, char *buf) {
  static const char units[] = " KMGTP";
  unsigned unit = 0;
  while (bytes >= 1024 && unit + 2 < sizeof units) {
    bytes /= 1024;
    unit++;
  }
  snprintf(buf, CELL_MAX, unit ? "%.1f%c" : "%.0f", bytes, units[unit]);
}

static void format_cell(const zps_json *row, const struct column *column, char *buf) {
  const double number = zps_json_opt_real(row, column->key, NAN);
  if (column->kind == BYTES && !isnan(number)) {
    format_bytes(number, buf);
  } else if (column->kind == RATE && !isnan(number)) {
    snprintf(buf, CELL_MAX, "%.4g", number);
  } else {
    zps_json_text(zps_json_get(row, column->key), buf, CELL_MAX);
    zps_text_sanitize(buf, strlen(buf));
  }
  if (!buf[0]) strcpy(buf, "-");
}

static void fill(struct table *table, const zps_json *rows) {
  for (unsigned c = 0; c < table->n_columns; c++) {
    const struct column *column = &table->view->columns[c];
    snprintf(cell(table, 0, c), CELL_MAX, "%s", column->title);
    table->width[c] = strlen(column->title);
    for (size_t r = 0; r < table->n_rows; r++) {
      const zps_json *row = zps_json_at(rows, r);
      char *text = cell(table, r + 1, c);
      format_cell(row, column, text);
      if (zps_json_get(row, column->key) && isnan(zps_json_opt_real(row, column->key, NAN))) table->text[c] = true;
      if (text_width(text) > table->width[c]) table->width[c] = text_width(text);
    }
  }
}

static void print_cells(FILE *out, const struct table *table) {
  for (size_t r = 0; r <= table->n_rows; r++) {
    for (unsigned c = 0; c < table->n_columns; c++) {
      const char *text = cell(table, r, c);
      const int pad = (int)(table->width[c] - text_width(text));
      const bool last = c + 1 == table->n_columns;
      if (c) fputs("  ", out);
      if (table->text[c]) {
        fprintf(out, "%s%*s", text, last ? 0 : pad, "");
      } else {
        fprintf(out, "%*s%s", pad, "", text);
      }
    }
    fputc('\n', out);
  }
}

static zps_err_t print_view(FILE *out, const struct view *view, const zps_json *rows) {
  struct table table = {.view = view, .n_rows = zps_json_array_len(rows)};
  while (table.n_columns < COLUMNS_MAX && view->columns[table.n_columns].key) table.n_columns++;
  table.cells = calloc((table.n_rows + 1) * table.n_columns, CELL_MAX);
  if (!table.cells) return ZPS_ERR_NOMEM;
  fill(&table, rows);
  print_cells(out, &table);
  free(table.cells);
  return ZPS_OK;
}

zps_err_t zps_ctl_table_print(FILE *out, const char *noun, const zps_json *result) {
  bool first = true;
  for (unsigned i = 0; i < sizeof views / sizeof views[0]; i++) {
    if (strcmp(views[i].noun, noun) != 0) continue;
    const zps_json *rows = zps_json_get(result, views[i].array);
    if (!first && !rows) continue; /* It was not asked for, or there is nothing to tell. */
    if (!first) fputc('\n', out);
    first = false;
    const zps_err_t err = print_view(out, &views[i], rows);
    if (err) return err;
  }
  const uint64_t left_out = zps_json_opt_u64(result, "left_out", 0);
  if (left_out) fprintf(out, "\n(%llu more rows are left out)\n", (unsigned long long)left_out);
  return ZPS_OK;
}

void zps_ctl_table_columns(const char *noun,
                           void (*each)(void *ctx, const char *array, const char *key, const char *title), void *ctx) {
  for (unsigned i = 0; i < sizeof views / sizeof views[0]; i++) {
    if (strcmp(views[i].noun, noun) != 0) continue;
    for (const struct column *column = views[i].columns; column < views[i].columns + COLUMNS_MAX && column->key;
         column++)
      each(ctx, views[i].array, column->key, column->title);
  }
}
