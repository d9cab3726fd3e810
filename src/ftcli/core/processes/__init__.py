"""Other processes: questions that may raise, abort or hang are asked in one of them, and their memory is counted."""
