"""From somebody's rows to bounded numbers, one row at a time: cells, tables, domains, blocks, files."""
