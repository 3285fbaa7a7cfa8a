"""``stillframe watch``: a page that shows a system while it runs, and its metrics."""
