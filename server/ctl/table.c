#include "server/ctl/ctl.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

enum { COLUMNS_MAX = 28, CELL_MAX = 200 };

enum kind { PLAIN, BYTES, RATE };

/* The columns of a table. "key": its title is the key in capitals, with its unit. "key.": a number in four digits.
 * "key#": bytes with a unit. "key=TITLE": another title. */
struct view {
  const char *noun, *array, *columns;
};

static const struct view views[] = {
    {"status", "coordinator",
     "address, state, version, protocol, pid, uptime_s., epoch, servers, servers_draining=DRAINING, jobs, ranks, "
     "tensors"},
    {"members", "servers",
     "server, name, state, host, pid, provider, keys, rails, address, jobs, silent_ms, clock_ms., "
     "clock_error_ms.=ERROR/ms, "
     "version"},
    {"members", "ranks",
     "job, rank, state, host, pid, provider, keys, rails, address, memory, silent_ms, clock_ms., "
     "clock_error_ms.=ERROR/ms, "
     "version"},
    {"members", "unreachable", "job, server, name, rank, ranks, out_s., again_s., reason"},
    {"security", "parts", "part, state, how, close=TO CLOSE IT"},
    {"drain", "servers", "name, state, host, jobs"},
    {"drain", "jobs", "job, job_id=ID, outcome, reason"},
    {"rebalance", "jobs", "job, job_id=ID, outcome, servers, partitions, reason"},
    {"kick", "ranks", "job, job_id=ID, rank, host, pid, job_state"},
    {"undrain", "servers", "name, state, host, jobs"},
    {"jobs", "jobs",
     "job, job_id=ID, state, world, joined, left, lost, servers, lost_servers, epoch, generation, weight, tensors, "
     "rounds, servers_in, places, age_s., started_at=STARTED, code, failure"},
    {"jobs", "ended",
     "job, job_id=ID, state, world, left, lost, servers, lost_servers, epoch, tensors, rounds, bytes_out#=OUT, "
     "bytes_in#=IN, ran_s., ended_at=ENDED, code, failure"},
    {"tensors", "tensors",
     "job, tensor, name, group, state, rows, width, dtype, op, partitions, block_bits, codec, values, scheme, planned, "
     "servers"},
    {"rounds", "rounds", "job, name=TENSOR, step, age_ms, server, waits_for, n_ranks=OF, ranks, left_ms"},
    {"stats", "servers",
     "server, host, answer, jobs, tensors, rounds_in_flight=IN-FLIGHT, memory_in_use_bytes#=MEM, "
     "memory_high_water_bytes#=MEM-PEAK, read_bytes#=READ, msg_bytes_sent#=MSG-OUT, msg_bytes_received#=MSG-IN, again, "
     "malformed, forged, corrupt, reconnects, resent, reordered, rails_lost, rails_out, rails_refused"},
    {"stats", "tensors",
     "job, name=TENSOR, group, scheme, step, rounds, failed, rounds_per_s., bytes_out#=OUT, bytes_out_per_s#=OUT/s, "
     "bytes_in#=IN, bytes_in_per_s#=IN/s, shared_out#=SHARED, saved., density., union_density.=UNION, round_ms., "
     "encode_ms., push_ms., wait_ms., pull_ms., decode_ms., imbalance_push.=IMB-PUSH, imbalance_pull.=IMB-PULL, "
     "told_s."},
    {"stats", "ranks",
     "job, rank, host, state, step, rounds, failed, bytes_out#=OUT, bytes_in#=IN, shared_out#=SHARED, "
     "kept_bytes#=KEPT, forged, corrupt, reconnects, resent, reordered, round_ms., wait_ms., pull_ms., "
     "link_bytes_per_s#=LINK/s, late_percent., late, told_s."},
    {"stats", "shards",
     "server, job, name=TENSOR, group, rounds, aborted, rounds_per_s., bytes_in#=IN, bytes_in_per_s#=IN/s, "
     "bytes_out#=OUT, bytes_out_per_s#=OUT/s, density., union_density.=UNION, imbalance_push.=IMB-PUSH, "
     "imbalance_pull.=IMB-PULL, imbalance_step.=IMB-STEP, collect_ms., reduce_ms., publish_ms."},
    {"stats", "lags", "server, job, name=TENSOR, group, rank, lag_ms., closed_without=WITHOUT"},
    {"stats", "shares",
     "server, job, weight, pool_bytes#=SUMMED, pool_contested_bytes#=CONTESTED, pool_waited_bytes#=WAITED-FOR, "
     "memory_bytes#=MEM"},
};

struct column {
  char key[32], title[32];
  enum kind kind;
};

static void make_title(const char *key, char *title) {
  static const char *const units[][2] = {{"_ms", "/ms"}, {"_per_s", "/s"}, {"_s", "/s"}, {"_percent", "/%"}};
  size_t len = strlen(key);
  const char *unit = "";
  for (unsigned i = 0; i < sizeof units / sizeof units[0] && !*unit; i++) {
    const size_t n = strlen(units[i][0]);
    if (len <= n || strcmp(key + len - n, units[i][0]) != 0) continue;
    unit = units[i][1];
    len -= n;
  }
  for (size_t i = 0; i < len; i++) title[i] = key[i] == '_' ? '-' : (char)toupper((unsigned char)key[i]);
  strcpy(title + len, unit);
}

static bool next_column(const char **columns, struct column *column) {
  char word[64];
  if (!zps_text_word(columns, word, sizeof word)) return false;
  char *const title = strchr(word, '='), *const end = (title ? title : word + strlen(word)) - 1;
  column->kind = *end == '.' ? RATE : *end == '#' ? BYTES : PLAIN;
  snprintf(column->key, sizeof column->key, "%.*s", (int)(end - word) + (column->kind == PLAIN), word);
  if (title)
    snprintf(column->title, sizeof column->title, "%s", title + 1);
  else
    make_title(column->key, column->title);
  return true;
}

struct table {
  struct column columns[COLUMNS_MAX];
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

const char *zps_ctl_bytes_text(double bytes, char text[ZPS_CTL_BYTES_MAX]) {
  static const char units[] = " KMGTP";
  unsigned unit = 0;
  while (bytes >= 1024 && unit + 2 < sizeof units) {
    bytes /= 1024;
    unit++;
  }
  snprintf(text, ZPS_CTL_BYTES_MAX, unit ? "%.1f%c" : "%.0f", bytes, units[unit]);
  return text;
}

static void format_cell(const zps_json *row, const struct column *column, char *buf) {
  const double number = zps_json_opt_real(row, column->key, NAN);
  if (column->kind == BYTES && !isnan(number)) {
    zps_ctl_bytes_text(number, buf);
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
    const struct column *column = &table->columns[c];
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
  struct table table = {.n_rows = zps_json_array_len(rows)};
  const char *columns = view->columns;
  while (table.n_columns < COLUMNS_MAX && next_column(&columns, &table.columns[table.n_columns])) table.n_columns++;
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
    struct column column;
    for (const char *columns = views[i].columns; next_column(&columns, &column);)
      each(ctx, views[i].array, column.key, column.title);
  }
}
