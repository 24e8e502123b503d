//! Packs the page.

fn main() {
    page_files::pack("src/server/page");
}
