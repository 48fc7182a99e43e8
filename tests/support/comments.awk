# Comments that do not stand alone, as FILE:LINE: WHAT: COMMENT. Reads C, CUDA, Python and shell files.
# In Python and shell, lines that hold a comment and nothing else are one comment with their neighbours. So are lines of //.
# With all=1 every comment is printed.

BEGIN {
  joins = "and|or|but|nor|as|that|who|whom|whose|which|also|then|else"
  begins_joined = "^(" joins ")([^A-Za-z_0-9-]|$)"
  begins_always = "^([Ll]ikewise|[Oo]f which|[Ss]o many)([^A-Za-z_0-9-]|$)"
  begins_same = "^([Tt]he same([,.;:]|$| (for|of|in|to|as|by|with|without|when|where|after|from|on|along|at|but|again|also)([^A-Za-z]|$))|the same([^A-Za-z]|$))"
  ends_open = "([:,]|(^|[^A-Za-z])(as|and|or|the|a|an|which))$"
}

function judge(text, line) {
  gsub(/\n[ \t]*\*?[ \t]*/, " ", text)
  gsub(/^[ \t*!<#]+|[ \t*]+$/, "", text)
  if (text == "")
    return
  if (all)
    print file ":" line ": " text
  else if (text ~ begins_joined || text ~ begins_always || text ~ begins_same)
    print file ":" line ": continues another comment: " text
  else if (text ~ ends_open)
    print file ":" line ": ends open: " text
}

# Lines of // or # that are one comment.
function flush() {
  if (block != "")
    judge(block, block_line)
  block = ""
}
function whole_line(text) {
  if (block == "")
    block_line = FNR
  block = block "\n" text
}

FNR == 1 {
  flush()
  file = FILENAME
  in_comment = 0
  is_c = file !~ /\.(py|sh)$/
  is_python = file ~ /\.py$/
}

!is_c {
  if (match($0, /^[ \t]*#/)) {
    if (!(FNR == 1 && /^#!/))
      whole_line(substr($0, RLENGTH + 1))
    next
  }
  flush()
  if (is_python && match($0, /  # [^"']*$/))
    judge(substr($0, RSTART + 4), FNR)
  next
}

{
  rest = $0
  if (in_comment) {
    end = index(rest, "*/")
    if (!end) {
      text = text "\n" rest
      next
    }
    in_comment = 0
    judge(text "\n" substr(rest, 1, end - 1), text_line)
    rest = substr(rest, end + 2)
  } else if (match(rest, /^[ \t]*\/\//)) {
    whole_line(substr(rest, RLENGTH + 1))
    next
  }
  flush()
  while (match(rest, /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'|\/\*|\/\//)) {
    start = substr(rest, RSTART, 2)
    rest = substr(rest, RSTART + RLENGTH)
    if (start == "//") {
      judge(rest, FNR)
      next
    }
    if (start != "/*")
      continue
    text_line = FNR
    end = index(rest, "*/")
    if (!end) {
      text = rest
      in_comment = 1
      next
    }
    judge(substr(rest, 1, end - 1), FNR)
    rest = substr(rest, end + 2)
  }
}

END { flush() }
