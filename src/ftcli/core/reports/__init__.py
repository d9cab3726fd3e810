"""Reports as HTML: tables, figures and plots."""
