/* A frame over the last one: the cursor goes home, each line clears what is left of the old one, and the rest of the
 * screen is cleared. Nothing is cleared before it is written, so nothing flickers. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "server/ctl/ctl.h"

#define HOME "\033[H"
#define CLEAR_LINE "\033[K"
#define CLEAR_BELOW "\033[J"

/* Bytes of the first `columns` characters of a line; continuation bytes of UTF-8 take no room. */
static size_t clip(const char *line, size_t len, unsigned columns) {
  size_t at = 0;
  for (unsigned n = 0; at < len; at++) {
    if (((unsigned char)line[at] & 0xc0) != 0x80 && n++ == columns) break;
  }
  return at;
}

static unsigned count_lines(const char *frame) {
  unsigned n = 0;
  for (; *frame; frame++) n += *frame == '\n';
  return n;
}

/* A line that fills its row leaves nothing to clear, and clearing there would take its last character. */
static void put_line(FILE *out, const char *line, size_t len, unsigned columns) {
  const size_t bytes = clip(line, len, columns);
  fwrite(line, 1, bytes, out);
  if (clip(line, bytes, columns - 1) == bytes) fputs(CLEAR_LINE, out);
  fputc('\n', out);
}

void zps_ctl_screen_draw(FILE *out, const char *frame, unsigned rows, unsigned columns) {
  /* One row is left for the cursor, since a newline in the last one would scroll. */
  const unsigned n = count_lines(frame), room = rows > 2 ? rows - 1 : 2, fit = n <= room ? n : room - 1;
  fputs(HOME, out);
  for (unsigned i = 0; i < fit; i++) {
    const size_t len = strcspn(frame, "\n");
    put_line(out, frame, len, columns);
    frame += len + 1;
  }
  if (fit < n) {
    char more[80];
    const int len = snprintf(more, sizeof more, "(%u more lines: the window is too small for them)", n - fit);
    put_line(out, more, (size_t)len, columns);
  }
  fputs(CLEAR_BELOW, out);
}

bool zps_ctl_screen_size(int fd, unsigned *rows_p, unsigned *columns_p) {
  const char *const term = getenv("TERM");
  struct winsize size = {0};
  if (!isatty(fd) || !term || !*term || strcmp(term, "dumb") == 0) return false;
  const bool known = ioctl(fd, TIOCGWINSZ, &size) == 0;
  *rows_p = known && size.ws_row ? size.ws_row : 24;
  *columns_p = known && size.ws_col ? size.ws_col : 80;
  return true;
}
