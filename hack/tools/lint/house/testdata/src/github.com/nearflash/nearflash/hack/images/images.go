package images
