# ZPS_WITH_PKG(NAME, VAR, MODULES, DEFAULT, USED-FOR)
# --with-NAME[=PATH|yes|no|auto]: finds MODULES with pkg-config, also under PATH. Sets VAR_CFLAGS, VAR_LIBS, have_VAR
# (yes/no) and why_VAR (a phrase for the summary). "yes" and a PATH make a missing package an error that says what to
# install; DEFAULT is what holds without the option.
AC_DEFUN([ZPS_WITH_PKG], [
  AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1@<:@=PATH|yes|no|auto@:>@], [$5 (default: $4)])], [], [with_$2=$4
    AS_VAR_SET(AS_TR_SH([with_$1]), [$4])])
  zps_with="AS_VAR_GET(AS_TR_SH([with_$1]))"
  have_$2=no
  AS_CASE([$zps_with],
    [no], [why_$2="switched off by --without-$1"],
    [yes|auto], [
      PKG_CHECK_MODULES([$2], [$3], [have_$2=yes; why_$2="$($PKG_CONFIG --modversion $1 2>/dev/null || $PKG_CONFIG --modversion $(echo "$3" | cut -d' ' -f1))"], [why_$2="pkg-config finds no $3"])],
    [zps_path="$zps_with"
      zps_save="$PKG_CONFIG_PATH"
      PKG_CONFIG_PATH="$zps_path/lib/pkgconfig:$zps_path/lib64/pkgconfig:$zps_path/share/pkgconfig:$PKG_CONFIG_PATH"
      export PKG_CONFIG_PATH
      PKG_CHECK_MODULES([$2], [$3], [have_$2=yes; why_$2="from $zps_path"], [why_$2="no $3 under $zps_path"])
      PKG_CONFIG_PATH="$zps_save"])
  AS_IF([test "x$have_$2" = xno && test "x$zps_with" != xno && test "x$zps_with" != xauto],
    [AC_MSG_ERROR([--with-$1: $why_$2. Install its development package, or give --with-$1=PATH (the prefix that has lib/pkgconfig)])])
  AM_CONDITIONAL([HAVE_$2], [test "x$have_$2" = xyes])
])
