#include "worker/examples/libsvm.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/tools/lines.h"

static bool reserve(void *array_p, uint64_t capacity, size_t size) {
  void **array = array_p, *grown = realloc(*array, capacity * size);
  if (grown) *array = grown;
  return grown != NULL;
}

static bool add_entry(struct sample_set *set, uint32_t index, float value) {
  if (set->n_entries == set->entries_capacity) {
    const uint64_t capacity = set->entries_capacity ? 2 * set->entries_capacity : 4096;
    if (!reserve(&set->index, capacity, sizeof *set->index) || !reserve(&set->value, capacity, sizeof *set->value))
      return false;
    set->entries_capacity = capacity;
  }
  set->index[set->n_entries] = index;
  set->value[set->n_entries++] = value;
  return true;
}

static bool begin_sample(struct sample_set *set, double label) {
  if (set->n_own + 1 >= set->capacity) {
    const uint64_t capacity = set->capacity ? 2 * set->capacity : 1024;
    if (!reserve(&set->first, capacity, sizeof *set->first) || !reserve(&set->labels, capacity, sizeof *set->labels))
      return false;
    set->capacity = capacity;
  }
  set->first[set->n_own] = set->n_entries;
  set->labels[set->n_own++] = label;
  return add_entry(set, 0, 1.0f); /* the bias */
}

static zps_err_t parse_sample(struct libsvm *data, struct sample_set *set, const char *path, uint64_t number,
                              char *line, struct zps_error *error) {
  char *at = line, *end;
  const double label = strtod(at, &end);
  if (end == at || !isfinite(label))
    return zps_fail(error, ZPS_ERR_INVALID, "%s, line %llu: '%.20s' is no label: a line is 'label index:value ...'",
                    path, (unsigned long long)number, at);
  bool ok = begin_sample(set, label);
  for (at = end; ok;) {
    at += strspn(at, " \t");
    if (*at == '\0' || *at == '#') break;
    errno = 0;
    const unsigned long long index = strtoull(at, &end, 10);
    if (end == at || *end != ':' || index == 0 || index >= UINT32_MAX || errno != 0)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "%s, line %llu: '%.20s' is no feature: must be index:value, with an index from 1 on", path,
                      (unsigned long long)number, at);
    char *value_text = end + 1;
    const float value = strtof(value_text, &end);
    if (end == value_text || !isfinite(value) || (*end != ' ' && *end != '\t' && *end != '\0'))
      return zps_fail(error, ZPS_ERR_INVALID,
                      "%s, line %llu: feature %llu has no finite value: must be index:value, such as 7:0.5", path,
                      (unsigned long long)number, index);
    ok = add_entry(set, (uint32_t)index, value);
    if (index >= data->n_features) data->n_features = (uint32_t)index + 1;
    at = end;
  }
  if (!ok) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory at line %llu of %s", (unsigned long long)number, path);
  set->first[set->n_own] = set->n_entries;
  return ZPS_OK;
}

zps_err_t libsvm_read(const char *path, unsigned holdout, int rank, int world, struct libsvm *data,
                      struct zps_error *error) {
  *data = (struct libsvm){.n_features = 1};
  struct zps_tools_lines *lines;
  zps_err_t code = zps_tools_lines_open(path, &lines, error);
  if (code != ZPS_OK) return code;
  char *line;
  size_t len;
  while ((code = zps_tools_lines_next(lines, &line, &len, error)) == ZPS_OK) {
    const uint64_t number = zps_tools_lines_number(lines);
    line += strspn(line, " \t");
    if (*line == '\0' || *line == '#') continue;
    struct sample_set *set = holdout && number % holdout == 0 ? &data->held_out : &data->training;
    const uint64_t position = set->n_all++;
    if (position % (uint64_t)world != (uint64_t)rank) continue;
    code = parse_sample(data, set, path, number, line, error);
    if (code != ZPS_OK) break;
  }
  zps_tools_lines_close(lines);
  if (code == ZPS_ERR_CLOSED && data->training.n_all > 0) return ZPS_OK;
  if (code == ZPS_ERR_CLOSED && data->held_out.n_all > 0)
    code = zps_fail(error, ZPS_ERR_INVALID, "%s: all %llu samples are held out, and none is left to train on", path,
                    (unsigned long long)data->held_out.n_all);
  else if (code == ZPS_ERR_CLOSED)
    code = zps_fail(error, ZPS_ERR_INVALID, "%s holds no samples", path);
  libsvm_free(data);
  return code;
}

static void set_free(struct sample_set *set) {
  free(set->first);
  free(set->labels);
  free(set->index);
  free(set->value);
}

void libsvm_free(struct libsvm *data) {
  set_free(&data->training);
  set_free(&data->held_out);
  *data = (struct libsvm){.n_features = 0};
}

struct sample sample_at(const struct sample_set *set, uint64_t own_index) {
  const uint64_t first = set->first[own_index];
  return (struct sample){set->labels[own_index], (uint32_t)(set->first[own_index + 1] - first), set->index + first,
                         set->value + first};
}
