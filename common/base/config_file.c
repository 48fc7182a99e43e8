/* The configuration file. */
#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/config_impl.h"

enum { BYTES_MAX = 1 << 20 }; /* of a file: reading is bounded, for a pipe or device, too */

struct reader {
  struct zps_config_load *load;
  const char *path;
  FILE *file;
  bool *seen; /* per option: some line has set it */
  int line;
  size_t n_bytes;
  bool cut;      /* the last piece read had no end of line: the next one belongs to the same line */
  int stopped;   /* the line at which reading ended before the file did */
  char why[100]; /* the reason that reading ended */
  int refused;   /* the line that on_pair() refused first */
  zps_err_t err; /* its error */
};

__attribute__((format(printf, 2, 3))) static char *stop(struct reader *reader, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(reader->why, sizeof reader->why, format, args);
  va_end(args);
  reader->stopped = reader->line;
  return NULL;
}

/* inih tells its handler no line numbers, but asks for one line at a time, of as many bytes as it takes. */
static char *read_line(char *text, int size, void *stream) {
  struct reader *reader = stream;
  int c = reader->stopped ? EOF : getc(reader->file), len = 0;
  if (c == EOF) return NULL;
  if (reader->cut) return stop(reader, "the line is too long: must have at most %d bytes", size - 2);
  for (reader->line++; c != EOF; c = getc(reader->file)) {
    if (c == '\0') return stop(reader, "holds a zero byte: must be text");
    if (++reader->n_bytes > BYTES_MAX) return stop(reader, "the file goes on: must have at most %d bytes", BYTES_MAX);
    if (len == 0 && (c == ' ' || c == '\t')) continue; /* To inih an indented line continues the last one. */
    text[len++] = (char)c;
    if (c == '\n' || len == size - 1) break;
  }
  text[len] = '\0';
  reader->cut = c != '\n' && len == size - 1;
  return text;
}

/* Another key of the section, or else the key in another section. */
static const char *meant_key(const struct zps_config_load *load, const char *section, const char *key, char *meant,
                             size_t size) {
  char name[2 * ZPS_OPT_NAME_SIZE];
  struct zps_near near_key, near_name;
  snprintf(name, sizeof name, "%s.%s", section, key);
  zps_near_begin(&near_key, key, strlen(key));
  zps_near_begin(&near_name, name, strlen(name));
  for (const struct zps_opt *opt = load->table->opts; opt->name; opt++) {
    const char *const dot = strchr(opt->name, '.'), *const own_key = dot ? dot + 1 : opt->name;
    const size_t len = dot ? (size_t)(dot - opt->name) : 0;
    if (opt->flags & ZPS_OPT_NO_FILE) continue;
    if (strlen(section) == len && memcmp(opt->name, section, len) == 0) zps_near_try(&near_key, own_key);
    if (*section && strcmp(own_key, key) == 0) zps_near_try(&near_name, opt->name);
  }
  const struct zps_near *const near = zps_near_word(&near_key) ? &near_key : &near_name;
  return zps_near_say(near, "did you mean '", "'? ", meant, size);
}

static zps_err_t set(struct reader *reader, const char *section, const char *key, const char *value) {
  struct zps_config_load *load = reader->load;
  char name[2 * ZPS_OPT_NAME_SIZE];
  snprintf(name, sizeof name, "%s%s%s", section, *section ? "." : "", key);
  for (size_t i = 0; i < load->n_opts; i++) {
    const struct zps_opt *opt = &load->table->opts[i];
    if (strcmp(opt->name, name) != 0 || opt->flags & ZPS_OPT_NO_FILE) continue;
    if (reader->seen[i])
      return zps_fail(load->error, ZPS_ERR_INVALID, "%s:%d: %s is set a second time: one line must go", reader->path,
                      reader->line, name);
    char origin[300];
    snprintf(origin, sizeof origin, "%.200s:%d: %s", reader->path, reader->line, opt->name);
    reader->seen[i] = load->set[i] = true;
    snprintf(load->said[i], sizeof load->said[i], "%s (%.200s:%d)", opt->name, reader->path, reader->line);
    return zps_opt_set(opt, load->config, value, origin, load->error);
  }
  char meant[2 * ZPS_OPT_NAME_SIZE];
  return zps_fail(load->error, ZPS_ERR_INVALID,
                  "%s:%d: unknown option '%.60s'%s%.60s%s: %s%s --help lists what there is", reader->path, reader->line,
                  key, *section ? " in section [" : " outside of any section", section, *section ? "]" : "",
                  meant_key(load, section, key, meant, sizeof meant), load->table->program);
}

/* inih knows only " ;" as the start of a comment behind a value. */
static void cut_comment(char *value) {
  for (char *at = value; *at; at++) {
    if (*at != '#' || (at > value && at[-1] != ' ' && at[-1] != '\t')) continue;
    while (at > value && (at[-1] == ' ' || at[-1] == '\t')) at--;
    *at = '\0';
    return;
  }
}

static int on_pair(void *ctx, const char *section, const char *key, const char *given) {
  struct reader *reader = ctx;
  if (reader->refused) return 0;
  char *const value = strdup(given);
  if (value) cut_comment(value);
  reader->err = value ? set(reader, section, key, value)
                      : zps_fail(reader->load->error, ZPS_ERR_NOMEM, "out of memory at %s", reader->path);
  free(value);
  if (reader->err) reader->refused = reader->line;
  return reader->err == ZPS_OK;
}

zps_err_t zps_config_file(struct zps_config_load *load, const char *path, bool may_be_missing, bool *was_read) {
  struct reader reader = {.load = load, .path = path};
  zps_err_t err = ZPS_OK;
  struct stat about;
  if (!*path)
    return zps_fail(load->error, ZPS_ERR_INVALID,
                    "the configuration file is '-': must be a path, or '-' and the path of a file that may be missing");
  reader.file = fopen(path, "re");
  if (!reader.file && may_be_missing && errno == ENOENT) return ZPS_OK;
  if (!reader.file)
    return zps_fail_errno(load->error, ZPS_ERR_IO, errno, "cannot open the configuration file %.300s", path);
  if (fstat(fileno(reader.file), &about) == 0 && (S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode))) {
    err =
        zps_fail(load->error, ZPS_ERR_INVALID, "the configuration %.300s is a device: must be a file or a pipe", path);
    goto out;
  }
  reader.seen = calloc(load->n_opts + 1, sizeof *reader.seen);
  if (!reader.seen) {
    err = zps_fail(load->error, ZPS_ERR_NOMEM, "out of memory");
    goto out;
  }
  const int bad_line = ini_parse_stream(read_line, &reader, on_pair, &reader);
  if (ferror(reader.file)) {
    err = zps_fail_errno(load->error, ZPS_ERR_IO, errno, "cannot read the configuration file %.300s", path);
  } else if (reader.stopped && (!bad_line || reader.stopped <= bad_line)) {
    err = zps_fail(load->error, ZPS_ERR_INVALID, "%.300s:%d: %s", path, reader.stopped, reader.why);
  } else if (bad_line == -2) {
    err = zps_fail(load->error, ZPS_ERR_NOMEM, "out of memory");
  } else if (reader.refused && bad_line >= reader.refused) {
    err = reader.err;
  } else if (bad_line) {
    err = zps_fail(load->error, ZPS_ERR_INVALID, "%.300s:%d: must be 'KEY = VALUE', '[SECTION]' or a comment (#)", path,
                   bad_line);
  }
  *was_read = !err;
out:
  free(reader.seen);
  fclose(reader.file);
  return err;
}
