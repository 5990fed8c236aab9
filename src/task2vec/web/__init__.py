"""The library in the browser: a JSON API, and the page that uses it (`task2vec serve`)."""
