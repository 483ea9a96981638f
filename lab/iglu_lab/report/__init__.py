"""``iglu report``: compare existing measurements with the paper; runs nothing itself."""
