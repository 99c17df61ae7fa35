"""What is made for, and checked in, the project's pages: the site, pictures of the terminal, printed output, words."""
