"""The least that each kernel must move and multiply, and on a GPU how close it comes to that."""
