//! Packs the chat page.

fn main() {
    page_files::pack("src/server/page");
}
