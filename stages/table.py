"""Rows of text as a table, for reports and for the command line."""


def table(rows: list[dict[str, str]]) -> str:
    """Rows as a plain-text table; the columns are those of the first row, numbers are aligned to the right."""
    if not rows:
        return ""
    columns = list(rows[0])
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in columns}
    lines = ["  ".join(column.ljust(widths[column]) for column in columns)]
    lines.append("  ".join("-" * widths[column] for column in columns))
    for row in rows:
        cells = (_align(row[column], widths[column]) for column in columns)
        lines.append("  ".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def _align(cell: str, width: int) -> str:
    return cell.rjust(width) if cell[:1].isdigit() or cell[:2].lstrip("+-")[:1].isdigit() else cell.ljust(width)
