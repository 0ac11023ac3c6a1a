"""The engine under torch: ordinary training programs, run plain and inside a budget."""
